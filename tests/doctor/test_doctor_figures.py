"""What a window's figures come to where gauges and histograms tell different things."""

from __future__ import annotations

import random

import pytest

from doctor.doctor_metrics import MadeUpServer
from pagoda.doctor.bound import prefill_share
from pagoda.doctor.examine import examine
from pagoda.doctor.figures import Traffic, cache_of, traffic_of
from pagoda.doctor.window import Window


def running(count: float) -> dict[str, float]:
    return {"num_requests_running": count, "num_requests_waiting": 0.0}


def traffic(server: MadeUpServer) -> Traffic:
    """Without the scrape before which nothing had come."""
    return traffic_of(Window(server.scrapes[1:]))


def test_a_life_that_ends_in_the_window_was_not_all_spent_in_it() -> None:
    server = MadeUpServer()
    for second in range(31):
        ended = 8 if second == 20 else 0
        server.second(
            running(8.0),
            iteration_tokens_total_count=20,
            generation_tokens_total=160,
            finished=ended,
            request_decode_time_seconds_sum=600.0 * ended,
        )
    assert traffic(server).mean_running == 8


def test_many_at_once_for_half_of_the_time_are_half_of_the_time() -> None:
    server = MadeUpServer()
    for second in range(41):  # of each second the first half: every other scrape sees it
        server.second(
            running(8.0 * (second % 2)),
            iteration_tokens_total_count=20,
            generation_tokens_total=160,
            finished=8,
            request_decode_time_seconds_sum=8 * 0.5,
        )
    assert traffic(server).busy_share == pytest.approx(0.5, abs=0.02)


def test_few_that_no_scrape_sees_are_told_by_how_long_they_took() -> None:
    server = MadeUpServer()
    for _ in range(21):
        server.second(
            running(0.0),
            iteration_tokens_total_count=5,
            generation_tokens_total=5,
            finished=1,
            request_decode_time_seconds_sum=0.25,
        )
    assert traffic(server).busy_share == pytest.approx(0.25)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("stands_still", [False, True])
def test_prompts_are_priced_only_where_the_engine_never_stood_still(
    seed: int, stands_still: bool
) -> None:
    server, source = MadeUpServer(), random.Random(seed)
    for second in range(31):
        # A step takes 10 ms and a prompt's token 1 ms, in each second or in half of it.
        rest = source.uniform(0.2, 0.8) if stands_still else 0.0
        prompts = source.uniform(0.1, 0.9) * (1 - rest)
        steps = (1 - rest - prompts) / 0.01
        server.second(
            running(0.0 if stands_still and second % 3 == 0 else 4.0),
            computed=prompts / 0.001,
            generation_tokens_total=4 * steps,
            iteration_tokens_total_count=steps,
            iteration_tokens_total_sum=4 * steps + prompts / 0.001,
        )
    fitted = traffic(server).prompt_time
    if stands_still:
        assert fitted is None
    else:
        once = traffic(server).computed_tokens * 0.001 / 30
        assert fitted is not None
        assert fitted.share == pytest.approx(once, abs=0.01)


@pytest.mark.parametrize("ended", [3, 9])
def test_prompts_whose_requests_go_on_took_time_too(ended: int) -> None:
    """Nine prompts a second of 0.1 s each: nine tenths of the time, however many have ended."""
    server = MadeUpServer()
    for _ in range(21):
        server.second(
            running(9.0),
            computed=9000,
            generation_tokens_total=90,
            time_to_first_token_seconds_count=9,
            finished=ended,
            request_prefill_time_seconds_sum=0.1 * ended,
            iteration_tokens_total_count=10,
            iteration_tokens_total_sum=9090,
        )
    window = Window(server.scrapes[1:])
    low, high = prefill_share(traffic_of(window), cache_of(window))
    assert low > 0.7
    assert high >= 0.9


@pytest.mark.parametrize(("duration", "severity"), [(5, "note"), (30, "change")])
@pytest.mark.parametrize("gauges", [(3.0, 10.0), (0.0, 10.0), (1.0, 0.0)])
def test_work_that_does_not_move_is_not_idleness(
    duration: int, severity: str, gauges: tuple[float, float]
) -> None:
    server = MadeUpServer()
    for _ in range(duration + 1):
        server.second({"num_requests_running": gauges[0], "num_requests_waiting": gauges[1]})
    diagnosis = examine(Window(server.scrapes[1:]))
    assert diagnosis.answers[0].verdict == "stalled"
    assert [(f.code, f.severity) for f in diagnosis.findings] == [("no_progress", severity)]
    assert diagnosis.advice == diagnosis.findings[0].advice


def test_a_server_without_requests_is_idle() -> None:
    server = MadeUpServer()
    for _ in range(31):
        server.second(running(0.0))
    diagnosis = examine(Window(server.scrapes[1:]))
    assert (diagnosis.answers[0].verdict, diagnosis.findings) == ("idle", ())


@pytest.mark.parametrize(
    ("text", "layers"),
    [("", ()), ("29,0", (0, 29)), ("['0', '29']", (0, 29)), ("['sliding_window', '3']", (3,)),
     ("[]", ()), ("layer7,-1,2.5,99999", ())],
)  # fmt: skip
def test_layers_that_keep_their_dtype_are_read_from_either_engine(
    text: str, layers: tuple[int, ...]
) -> None:
    server = MadeUpServer(labels={"kv_cache_dtype_skip_layers": text})
    server.second({})
    assert cache_of(Window(server.scrapes)).skipped_layers == layers
