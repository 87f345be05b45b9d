"""What the doctor says of servers that are made up, near the edges of its rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.doctor_metrics import MadeUpServer, examined
from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.doctor import Diagnosis, Machine, Scrape
from pagoda.doctor.bound import prefill_share
from pagoda.doctor.diagnosis import Advice
from pagoda.doctor.figures import cache_of, traffic_of
from pagoda.doctor.vocabulary import FLAGS
from pagoda.doctor.window import Window
from pagoda.errors import InvalidOptionError
from pagoda.sizing.measured_cost import COSTS

BUSY = {"num_requests_running": 8.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.3}


def requests(
    count: int, prompt: int, answer: int, *, hits: int = 0, prefill_s: float = 0.1
) -> dict[str, float]:
    """What counters rise by when so many requests end, whose prompts are hit for `hits` tokens."""
    return {
        "finished": count,
        "computed": count * (prompt - hits),
        "generation_tokens_total": count * answer,
        "prefix_cache_queries_total": count * prompt,
        "prefix_cache_hits_total": count * hits,
        "request_prompt_tokens_count": count,
        "request_prompt_tokens_sum": count * prompt,
        "request_generation_tokens_count": count,
        "request_generation_tokens_sum": count * answer,
        "time_to_first_token_seconds_count": count,
        "request_prefill_time_seconds_sum": count * prefill_s,
        "request_decode_time_seconds_sum": count * answer * 0.01,
        "iteration_tokens_total_count": 50,
        "iteration_tokens_total_sum": count * (prompt - hits + answer),
    }


def watched(server: MadeUpServer, machine: Machine | None = None) -> Diagnosis:
    return examined(server.scrapes, machine)


def codes(diagnosis: Diagnosis) -> dict[str, str]:
    return {finding.code: finding.severity for finding in diagnosis.findings}


def test_no_traffic_is_idle_and_healthy() -> None:
    server = MadeUpServer()
    for _ in range(5):
        server.second({})
    diagnosis = watched(server)
    assert diagnosis.answer("bound").verdict == "idle"
    assert diagnosis.answer("next").verdict == "none"
    assert (diagnosis.is_healthy, diagnosis.findings) == (True, ())


def test_a_window_without_time_says_nothing() -> None:
    server = MadeUpServer()
    server.second(BUSY)
    first = server.scrapes[0]
    diagnosis = examined([first, first])
    assert diagnosis.answer("bound").verdict == "idle"


def test_an_engine_that_stands_still_half_the_time_can_take_more() -> None:
    server = MadeUpServer()
    for second in range(20):
        busy = second % 4 == 0
        counts: dict[str, float] = requests(1, 40, 60) if busy else {}
        server.second({"num_requests_running": float(busy)}, **counts)
    diagnosis = watched(server)
    assert diagnosis.answer("next").verdict == "load"
    assert "stood still" in diagnosis.advice[0].action


# Prompt lengths of five seconds, tokens hit of each prompt, blocks of the pool, and what is said.
PROMPTS: dict[str, tuple[list[int], int, int, dict[str, str]]] = {
    "alike and new": ([600, 610, 605, 612, 598], 0, 2000, {"unstable_prefix": "change"}),
    "alike but for a short lead": (
        [600, 610, 605, 612, 598],
        16,
        2000,
        {"unstable_prefix": "change"},
    ),
    "alike and found": ([600, 610, 605, 612, 598], 512, 2000, {}),
    "of all lengths": ([100, 900, 300, 1400, 500], 0, 2000, {"no_reuse": "note"}),
    "of one length, as load generators make them": ([600] * 5, 0, 2000, {"no_reuse": "note"}),
    "alike, but the pool forgets at once": ([600, 610, 605, 612, 598], 0, 60, {"no_reuse": "note"}),
    "short": ([60, 61, 60, 62, 59], 0, 2000, {}),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_that_find_nothing(name: str) -> None:
    lengths, hits, num_blocks, said = PROMPTS[name]
    server = MadeUpServer(num_blocks=num_blocks)
    for length in lengths:
        server.second(BUSY, **requests(4, length, 16, hits=hits, prefill_s=0.2))
    diagnosis = watched(server)
    assert codes(diagnosis) == said
    assert diagnosis.is_healthy == ("change" not in said.values())


def test_what_a_cache_beyond_the_engine_held_is_found() -> None:
    server = MadeUpServer("vllm", num_blocks=2000)
    server.values["external_prefix_cache_hits_total"] = 0.0
    server.begin()
    for length in (600, 610, 605, 612, 598):
        counts = requests(4, length, 16) | {"external_prefix_cache_hits_total": 4 * 512.0}
        server.second(BUSY, **counts)
    assert codes(watched(server)) == {}


def test_where_prompts_part_is_told_to_a_block() -> None:
    server = MadeUpServer()
    for length in (600, 610, 605, 612, 598):
        server.second(BUSY, **requests(4, length, 16, hits=32, prefill_s=0.2))
    [finding] = watched(server).findings
    assert "begin alike for 32 tokens and part before token 48" in finding.summary


@pytest.mark.parametrize("engine", ["pagoda", "vllm"])
def test_prefix_caching_that_is_off_is_named_with_its_flag(engine: str) -> None:
    server = MadeUpServer(engine)
    if engine == "vllm":
        [info] = [name for name in server.values if name.startswith("cache_config_info")]
        server.values[info.replace("{", '{enable_prefix_caching="False",')] = server.values.pop(
            info
        )
        server.begin()
    for _ in range(5):
        counts = requests(4, 600, 16, prefill_s=0.2) | {"prefix_cache_queries_total": 0.0}
        server.second(BUSY, **counts)
    diagnosis = watched(server)
    assert codes(diagnosis) == {"prefix_caching_off": "change"}
    assert diagnosis.advice[0].flag == "--enable-prefix-caching"
    assert diagnosis.answer("cache").verdict == "off"


@pytest.mark.parametrize(("num_preemptions", "severity"), [(1, "note"), (40, "change")])
def test_few_preemptions_are_a_note(num_preemptions: int, severity: str) -> None:
    server = MadeUpServer()
    for second in range(10):
        counts = requests(10, 40, 100) | {
            "num_preemptions_total": float(num_preemptions * (second == 5))
        }
        server.second(BUSY | {"kv_cache_usage_perc": 0.97}, **counts)
    diagnosis = watched(server)
    assert codes(diagnosis) == {"preemptions": severity}
    assert diagnosis.answer("cache").verdict == ("thrashing" if severity == "change" else "fine")


@pytest.mark.parametrize(
    ("num_blocks", "wanted", "seats"),
    [
        (512, (48 * 248 + 1550, 48 * 248 + 1650), "26"),  # 2 × 400 / √12 × √48 on top
        (902, (48 * 440, 48 * 450), "30"),
    ],
)
def test_requests_that_go_in_step_want_room_for_their_ends(
    num_blocks: int, wanted: tuple[int, int], seats: str
) -> None:
    server = MadeUpServer(num_blocks=num_blocks)
    running = 27.0 if num_blocks == 512 else 48.0
    gauges = {
        "num_requests_running": running,
        "num_requests_waiting": 48 - running,
        "kv_cache_usage_perc": 0.85,
    }
    for _ in range(10):
        server.second(gauges, **requests(4, 40, 400), num_preemptions_total=3)
    del server.scrapes[0]
    advice = {one.flag: one.proposed for one in watched(server).advice}
    num_tokens = 16 * int(advice["--num-gpu-blocks-override"] or 0)
    assert wanted[0] < 0.95 * num_tokens < wanted[1]
    assert advice["--max-num-seqs"] == seats


def queued(usage: float, running: float = 4.0, answer: int = 200) -> MadeUpServer:
    server = MadeUpServer()
    gauges = {
        "num_requests_running": running,
        "num_requests_waiting": 10.0,
        "kv_cache_usage_perc": usage,
    }
    for _ in range(10):
        server.second(gauges, **requests(2, 40, answer))
    del server.scrapes[0]  # before which nothing had come
    return server


def test_seats_are_missing_where_the_cache_has_room() -> None:
    diagnosis = watched(queued(usage=0.1))
    assert diagnosis.answer("bound").verdict == "queue"
    [finding] = diagnosis.findings
    [advice] = finding.advice
    assert (finding.code, advice.flag, advice.current, advice.proposed) == (
        "too_few_seats", "--max-num-seqs", "4", "14",
    )  # fmt: skip


def test_more_seats_are_never_more_than_fit() -> None:
    # 10 × (40 + 1,000 / 2 + 8) + 2 × 1,000 / √12 × √10 is below 95% of 8,192, for 11 it is not.
    [finding] = watched(queued(usage=0.5, answer=1000)).findings
    assert (finding.code, finding.advice[0].proposed) == ("too_few_seats", "10")
    [finding] = watched(queued(usage=0.8, running=10.0, answer=1000)).findings
    assert finding.code == "pool_full"


def test_a_full_pool_wants_memory() -> None:
    diagnosis = watched(queued(usage=0.97, answer=1900))
    assert diagnosis.answer("bound").verdict == "decode"
    assert diagnosis.answer("cache").verdict == "full"
    [finding] = diagnosis.findings
    # 97% of 512 blocks for 14 requests in place of 4, and 5% spare.
    advice = finding.advice[0]
    assert (finding.code, advice.flag) == ("pool_full", "--num-gpu-blocks-override")
    assert (advice.current, advice.proposed) == ("512", "1830")


def test_flags_are_of_one_replica_and_figures_of_all() -> None:
    def doubled(server: MadeUpServer) -> list[Scrape]:
        """The same replica twice."""
        return [
            replace(
                scrape,
                values={
                    replace(key, engine=engine): value
                    for key, value in scrape.values.items()
                    for engine in ("0", "1")
                },
            )
            for scrape in server.scrapes
        ]

    one, two = (queued(usage=0.1) for _ in range(2))
    alone, both = examined(one.scrapes), examined(doubled(two))
    assert both.engines == ("0", "1")
    assert both.advice[0].proposed == alone.advice[0].proposed == "14"
    full = queued(usage=0.97, answer=1900)
    alone, both = examined(full.scrapes), examined(doubled(full))
    assert both.advice[0].proposed == alone.advice[0].proposed
    assert "14 requests" in alone.advice[0].effect
    assert "28 requests" in both.advice[0].effect


PLAIN = {
    "cache_dtype": "auto",
    "bytes_per_token": 23_040,
    "narrower_cache_dtype": "int8_per_token_head",
    "narrower_bytes_per_token": 12_240,
}
CODED = {"cache_dtype": "int8_per_token_head", "bytes_per_token": 12_240}
COST = COSTS["int8_per_token_head"]
MEASURED = f"Measured on SmolLM2-135M: perplexity {COST.perplexity_change:+.2%} ({COST.low:+.2%} to"


def narrowing(diagnosis: Diagnosis) -> Advice | None:
    return next((one for one in diagnosis.advice if one.flag == "--kv-cache-dtype"), None)


@pytest.mark.parametrize(
    ("engine", "labels"), [("vllm", {"cache_dtype": "auto"}), ("pagoda", PLAIN)]
)
def test_narrow_k_and_v_where_they_are_most_of_what_is_read(
    engine: str, labels: dict[str, object]
) -> None:
    server = MadeUpServer(engine, labels=labels)
    for _ in range(10):
        server.second(BUSY, **requests(4, 40, 200))
    machine = Machine(weight_bytes=10**9, kv_token_bytes=10**6, bandwidth=2e12)
    advice = narrowing(watched(server, machine))
    assert advice is not None
    assert advice.proposed == ("fp8" if engine == "vllm" else "int8_per_token_head")
    assert narrowing(watched(server)) is None


def short_of_room(engine: str, trouble: str, labels: dict[str, object]) -> Diagnosis:
    """A server that preempts, lets requests wait, or forgets what comes again."""
    server = MadeUpServer(engine, num_blocks=60 if trouble == "no_reuse" else 512, labels=labels)
    waiting = 10.0 * (trouble == "pool_full")
    gauges = BUSY | {"num_requests_waiting": waiting, "kv_cache_usage_perc": 0.97}
    for second in range(10):
        answer = 16 if trouble == "no_reuse" else 1900
        counts = requests(2, 600 + second, answer, hits=512 * (trouble != "no_reuse"))
        server.second(gauges, **counts, num_preemptions_total=4.0 * (trouble == "preemptions"))
    del server.scrapes[0]
    return watched(server)


@pytest.mark.parametrize("trouble", ["preemptions", "pool_full", "no_reuse"])
def test_a_cache_that_is_too_small_could_hold_codes(trouble: str) -> None:
    diagnosis = short_of_room("pagoda", trouble, PLAIN)
    assert trouble in codes(diagnosis)
    advice = narrowing(diagnosis)
    assert advice is not None
    assert advice.action.endswith("--kv-cache-dtype int8_per_token_head.")
    assert "would hold 1.88 times as much" in advice.effect
    assert MEASURED in advice.effect
    assert "`pagoda lab` tells it for your model" in advice.effect
    assert (advice.current, advice.proposed) == ("auto", "int8_per_token_head")
    latents = PLAIN | {"narrower_cache_dtype": "int8_per_group"}
    advice = narrowing(short_of_room("pagoda", trouble, latents))
    assert advice is not None
    assert advice.proposed == "int8_per_group"
    assert "Answers may change a little: compare first." in advice.effect
    on_vllm = narrowing(short_of_room("vllm", trouble, {"cache_dtype": "auto"}))
    assert on_vllm is not None
    assert on_vllm.proposed == "fp8"
    assert "would hold 2 times as much" in on_vllm.effect
    assert "SmolLM2" not in on_vllm.effect


@pytest.mark.parametrize(
    "labels",
    [
        CODED,
        {},
        PLAIN | {"narrower_cache_dtype": ""},
        PLAIN | {"narrower_cache_dtype": "int9; rm -rf /"},
        PLAIN | {"narrower_bytes_per_token": 23_040},
        PLAIN | {"narrower_bytes_per_token": "nan"},
        PLAIN | {"narrower_bytes_per_token": -1},
        PLAIN | {"bytes_per_token": "inf"},
        PLAIN | {"bytes_per_token": "many"},
    ],
    ids=str,
)
def test_codes_are_not_proposed_where_they_are_there_or_senseless(
    labels: dict[str, object],
) -> None:
    diagnosis = short_of_room("pagoda", "preemptions", labels)
    assert codes(diagnosis)["preemptions"] == "change"
    assert narrowing(diagnosis) is None


def test_a_known_accelerator_settles_what_would_depend_on_it() -> None:
    server = MadeUpServer("vllm", num_blocks=4000)
    lengths = (100, 900, 300, 1400, 500)
    for length in lengths:
        server.second(BUSY, **requests(4, length, 100, prefill_s=0.2))
    assert watched(server).answer("bound").verdict == "mixed"
    assert watched(server, Machine(intensity=20.0)).answer("bound").verdict == "prefill"
    assert watched(server, Machine(intensity=300.0)).answer("bound").verdict == "decode"


def test_what_the_engine_estimates_goes_before_what_is_worked_out() -> None:
    server = MadeUpServer("vllm")
    server.values["estimated_read_bytes_per_gpu_total"] = 0.0
    server.begin()
    for _ in range(10):
        counts = requests(4, 40, 200) | {"estimated_read_bytes_per_gpu_total": 1e12}
        server.second(BUSY, **counts)
    del server.scrapes[0]  # before which nothing had come
    machine = Machine(weight_bytes=1, bandwidth=2e12, num_accelerators=2)
    answer = watched(server, machine).answer("bandwidth")
    assert answer.verdict == "between"
    read, deliverable = answer.evidence
    assert (read.metric, deliverable.value) == ("vllm:estimated_read_bytes_per_gpu_total", 4e12)
    assert read.value == pytest.approx(2e12)


@pytest.mark.parametrize("field", ["weight_bytes", "kv_token_bytes", "bandwidth", "intensity"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_machine_that_cannot_be_is_refused(field: str, value: float) -> None:
    known: dict[str, Any] = {field: value}
    with pytest.raises(InvalidOptionError, match=field):
        Machine(**known)


@given(
    st.integers(1, 50),
    st.integers(1, 5000),
    st.integers(1, 500),
    st.floats(0, 5),
    st.integers(1, 64),
)
def test_the_share_of_prompts_grows_with_them(
    count: int, prompt: int, answer: int, prefill_s: float, running: int
) -> None:
    def share(prompt: int) -> tuple[float, float]:
        server = MadeUpServer()
        for _ in range(5):
            counts = requests(count, prompt, answer, prefill_s=prefill_s)
            server.second(BUSY | {"num_requests_running": float(running)}, **counts)
        window = Window(server.scrapes)
        return prefill_share(traffic_of(window), cache_of(window))

    low, high = share(prompt)
    assert 0 <= low <= high <= 1
    more_low, more_high = share(2 * prompt)
    assert more_low >= low
    assert more_high >= high


def test_advice_names_flags_that_pagoda_has() -> None:
    known = {f"--{flag.name.replace('_', '-')}" for flag in ENGINE_FLAGS.flags}
    flags = FLAGS["pagoda"]
    named = {getattr(flags, name) for name in type(flags).__slots__} - {None}
    assert named <= known
