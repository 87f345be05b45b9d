"""What the doctor makes of hit rates at other sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from doctor.doctor_metrics import NO_LABELS, MadeUpServer, examined
from pagoda.doctor import Diagnosis
from pagoda.doctor.other_sizes import OtherSizes, other_sizes_of

CURVE = {0.25: 0.1, 0.5: 0.15, 1: 0.23, 2: 0.41, 4: 0.5, 8: 0.5}
FLAT = dict.fromkeys(CURVE, 0.3)


def diagnosed(
    own: Mapping[float, float],
    policy: str = "lru",
    usage: float = 0.3,
    labels: Mapping[str, object] = NO_LABELS,
    **lru: float,
) -> Diagnosis:
    """Of a server that computes long prompts, half of which it has seen before."""
    server = MadeUpServer(num_blocks=1000, labels=labels)
    rows = {f'multiple="{m:g}",policy="{policy}"': rate for m, rate in own.items()}
    rows |= {f'multiple="{m[1:]}",policy="lru"': rate for m, rate in lru.items()}
    server.values |= {f"prefix_cache_hit_rate_at{{{key}}}": rate for key, rate in rows.items()}
    server.begin()
    for _ in range(30):
        server.second(
            {"num_requests_running": 2.0, "kv_cache_usage_perc": usage},
            computed=4000,
            generation_tokens_total=10,
            finished=1,
            prefix_cache_queries_total=5000,
            prefix_cache_hits_total=1150,
            time_to_first_token_seconds_count=1,
            request_prefill_time_seconds_sum=1.5,
            request_decode_time_seconds_sum=0.4,
            iteration_tokens_total_sum=4010,
            iteration_tokens_total_count=10,
            request_prompt_tokens_sum=5000,
            request_prompt_tokens_count=1,
            request_generation_tokens_sum=10,
            request_generation_tokens_count=1,
        )
    return examined(server.scrapes)


def test_twice_the_memory_would_find_much_more() -> None:
    diagnosis = diagnosed(CURVE)
    [finding] = diagnosis.findings
    assert (finding.code, finding.severity) == ("small_cache", "change")
    advice = finding.advice[0]
    assert (advice.flag, advice.current, advice.proposed) == (
        "--num-gpu-blocks-override",
        "1000",
        "2000",
    )
    assert "41% of prompts' tokens would be found in place of 23%" in advice.effect
    assert diagnosis.advice[0] == advice
    answer = diagnosis.answer("cache")
    assert answer.verdict == "small"
    assert "twice the memory would find 41%" in answer.summary
    shown = {each.meaning: each.value for each in answer.evidence}
    assert shown["would be found with 0.5 times the blocks"] == 0.15


def test_the_first_size_that_is_worth_it_is_proposed() -> None:
    finding = diagnosed(CURVE | {2: 0.25}).findings[0]
    assert finding.advice[0].proposed == "4000"


def test_where_half_finds_as_much_the_memory_is_spare() -> None:
    [finding] = diagnosed(FLAT).findings
    assert (finding.code, finding.severity) == ("large_cache", "note")
    assert finding.advice[0].proposed == "500"


def test_half_the_blocks_are_proposed_only_where_the_longest_request_fits_into_them() -> None:
    [finding] = diagnosed(FLAT, labels={"max_model_len": 8000}).findings
    assert finding.advice[0].proposed == "500"
    assert "The server starts only" not in finding.advice[0].effect
    assert not diagnosed(FLAT, labels={"max_model_len": 8001}).findings


def test_an_engine_that_does_not_tell_its_longest_request_is_told_the_condition() -> None:
    [finding] = diagnosed(FLAT).findings
    assert "starts only where one request of its longest length fits" in finding.advice[0].effect


def test_memory_that_requests_hold_is_not_spare() -> None:
    assert not diagnosed(FLAT, usage=0.7).findings


def test_another_policy_that_finds_more_comes_first() -> None:
    finding = diagnosed(CURVE, "density", x1=0.33, x2=0.41).findings[0]
    advice = finding.advice[0]
    assert (advice.flag, advice.current, advice.proposed) == ("--eviction-policy", "density", "lru")


def test_without_the_gauge_nothing_is_said() -> None:
    assert not diagnosed({}).findings
    assert "twice the memory" not in diagnosed({}).answer("cache").summary


def test_between_two_sizes() -> None:
    sizes = OtherSizes("lru", CURVE, CURVE)
    assert sizes.at(1) == sizes.now == 0.23
    assert sizes.at(math.sqrt(2)) == pytest.approx((0.23 + 0.41) / 2)
    assert sizes.at(8) == 0.5
    assert sizes.at(0.2) is None
    assert sizes.at(9) is None


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [({"multiple": "2", "policy": "lru"}, 0.5)],
        [({"multiple": "1", "policy": "<b>lru</b>"}, 0.5)],
        [({"multiple": "1", "policy": "lru"}, 1.5)],
        [({"multiple": "one", "policy": "lru"}, 0.5)],
        [({"multiple": "nan", "policy": "lru"}, 0.5)],
        [({"multiple": "1", "policy": name}, 0.5) for name in ("lru", "slru", "density")],
        [({"multiple": "1"}, 0.5)],
        [({"multiple": "1", "policy": "lru"}, math.nan)],
    ],
)
def test_what_makes_no_sense_is_not_read(rows: list[tuple[dict[str, str], float]]) -> None:
    assert other_sizes_of(rows) is None


def test_replicas_are_taken_together() -> None:
    sizes = other_sizes_of([({"multiple": "1", "policy": "lru"}, rate) for rate in (0.2, 0.4)])
    assert sizes is not None
    assert sizes.now == pytest.approx(0.3)
