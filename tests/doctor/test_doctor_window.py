"""Reading metrics, and what a window of them comes to."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.doctor_metrics import URL, MadeUpServer, text_of
from pagoda.doctor import read_scrape
from pagoda.doctor.distribution import Distribution
from pagoda.doctor.window import Window
from pagoda.errors import InvalidOptionError

RUNNING = {"num_requests_running": 1.0}
REFUSED = {
    "a page": ("<!doctype html>\n<title>Hello</title>", "does not give Prometheus' text format"),
    "JSON": ('{"detail": "Not Found"}', "does not give Prometheus' text format"),
    "nothing": ("", "gives no metrics at all"),
    "another program's": ("node_load1 0.2\n", "has no engine's metrics"),
    "both": (text_of("pagoda", RUNNING) + text_of("vllm", RUNNING), "of Pagoda and of vLLM"),
    "half a line": ('vllm:num_requests_running{model_name="m', "does not give"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_engines_metrics_is_refused(name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(InvalidOptionError, match=message) as refusal:
        read_scrape(text, 0.0, URL)
    assert refusal.value.field == "url"
    assert "\n" not in str(refusal.value)


@given(st.text())
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError):
        read_scrape(text, 0.0, URL)


@given(st.text(), st.booleans())
def test_text_among_metrics_is_read_or_refused(text: str, behind: bool) -> None:
    metrics = text_of("vllm", RUNNING)
    whole = f"{metrics}{text}\n" if behind else f"{text}\n{metrics}"
    seen = []
    with suppress(InvalidOptionError):
        seen = [key.name for key in read_scrape(whole, 0.0, URL).values]
    assert seen == [] or "num_requests_running" in seen


def test_older_names_are_todays() -> None:
    old = {"gpu_cache_usage_perc": 0.5, "gpu_prefix_cache_hits_total": 7.0, **RUNNING}
    names = {key.name for key in read_scrape(text_of("vllm", old), 0.0, URL).values}
    assert names == {"kv_cache_usage_perc", "prefix_cache_hits_total", "num_requests_running"}


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.sampled_from(["goes on", "restarts", "is no number"])),
        min_size=1,
        max_size=12,
    )
)
def test_a_counter_rises_by_what_was_counted(seconds: list[tuple[int, str]]) -> None:
    server = MadeUpServer()
    server.second(RUNNING, generation_tokens_total=500)
    counted = 500.0
    for rise, event in seconds:
        if event == "restarts":
            server.restart()
            server.values["num_preemptions_total"] = 0.0
        if event == "is no number":
            kept, server.values["generation_tokens_total"] = (
                server.values["generation_tokens_total"],
                math.nan,
            )
            server.second(RUNNING)
            server.values["generation_tokens_total"] = kept
        server.second(RUNNING, generation_tokens_total=rise)
        counted += rise
    window = Window(server.scrapes)
    seen = window.increase("generation_tokens_total")
    assert seen is not None
    if all(event != "restarts" for _, event in seconds):
        assert seen == counted
        assert window.num_restarts == 0
    else:  # one that has counted more than before cannot be seen to have begun anew
        assert 0 <= seen <= counted


def test_a_restart_is_seen_and_what_came_after_is_counted() -> None:
    server = MadeUpServer()
    server.second(RUNNING, generation_tokens_total=500, num_preemptions_total=3)
    server.restart()
    server.second(RUNNING, generation_tokens_total=40, num_preemptions_total=1)
    server.second(RUNNING, generation_tokens_total=2)
    window = Window(server.scrapes)
    assert window.num_restarts == 1
    assert window.increase("generation_tokens_total") == 542
    assert window.increase("num_preemptions_total") == 4


def test_a_restart_is_seen_by_the_time_the_process_began() -> None:
    def scrape(time_s: float, began: int, value: float) -> str:
        values = {"generation_tokens_total": value, **RUNNING}
        return text_of("vllm", values, [f"process_start_time_seconds {began}"])

    scrapes = [read_scrape(scrape(t, *rest), t, URL) for t, *rest in [(0, 1, 5.0), (1, 2, 9.0)]]
    window = Window(scrapes)
    assert (window.num_restarts, window.increase("generation_tokens_total")) == (1, 9.0)


@pytest.mark.parametrize("began", [(1, 2, 1), (2, 1), (5, 5, 1, 5)])
def test_processes_that_answer_in_turn_are_refused(began: tuple[int, ...]) -> None:
    def scrape(time_s: float, began: int) -> str:
        values = {"generation_tokens_total": 10**6 * began + 5 * time_s, **RUNNING}
        return text_of("vllm", values, [f"process_start_time_seconds {began}"])

    scrapes = [read_scrape(scrape(t, at), t, URL) for t, at in enumerate(began)]
    with pytest.raises(InvalidOptionError, match="several processes answer in turn"):
        Window(scrapes)


@given(st.text())
def test_what_a_server_calls_itself_is_fit_for_a_terminal(name: str) -> None:
    quoted = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'model_name="{quoted}",cache_dtype="\x1b[2J{quoted}"'
    text = text_of("vllm", RUNNING).replace('model_name="m"', labels)
    for key in read_scrape(text, 0.0, URL).values:
        told = (key.model_name, key.engine, *(text for label in key.labels for text in label))
        assert all(text.isprintable() for text in told)


def test_one_replica_that_restarts_leaves_the_other_as_it_is() -> None:
    def scrape(first: int, second: int) -> str:
        return "".join(
            f'vllm:{name}{{model_name="m",engine="{engine}"}} {value}\n'
            for engine, value in (("0", first), ("1", second))
            for name in ("generation_tokens_total", "num_requests_running")
        )

    scrapes = [
        read_scrape(scrape(*pair), time, URL) for time, pair in enumerate([(100, 100), (5, 130)])
    ]
    window = Window(scrapes)
    assert window.engines == ["0", "1"]
    assert window.increase("generation_tokens_total") == 35
    running = window.gauge("num_requests_running")
    assert running is not None
    assert (running.least, running.most) == (135, 200)


def test_several_models_want_a_choice() -> None:
    text = text_of("vllm", RUNNING) + text_of("vllm", {"num_requests_running": 3.0}).replace(
        'model_name="m"', 'model_name="other"'
    )
    scrapes = [read_scrape(text, time, URL) for time in (0.0, 1.0)]
    with pytest.raises(InvalidOptionError, match="tell which of m, other"):
        Window(scrapes)
    with pytest.raises(InvalidOptionError, match="one of m, other"):
        Window(scrapes, "neither")
    assert Window(scrapes, "other").share_of_time("num_requests_running", above=2.0) == 1.0


def test_a_window_needs_two_scrapes_of_one_engine() -> None:
    scrape = MadeUpServer().scrapes[0]
    with pytest.raises(InvalidOptionError, match="at least two"):
        Window([scrape])
    with pytest.raises(InvalidOptionError, match="another engine"):
        Window([scrape, MadeUpServer("vllm").scrapes[0]])


@given(st.lists(st.floats(0.01, 999), min_size=1, max_size=50))
def test_no_value_is_below_the_least(values: list[float]) -> None:
    bounds = [1.0, 10.0, 100.0, 1000.0]
    below = {bound: float(sum(v <= bound for v in values)) for bound in (*bounds, math.inf)}
    least = Distribution.of(len(values), sum(values), below).least
    assert least == max(bound for bound in (0.0, *bounds) if bound < min(values))
