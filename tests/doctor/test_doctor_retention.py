"""What the doctor says of keeping but a part of each sequence, and of servers that do."""

from __future__ import annotations

import pytest

from doctor.doctor_metrics import MadeUpServer, examined
from doctor.test_doctor_findings import BUSY, codes, requests
from pagoda.doctor import Diagnosis
from pagoda.doctor.diagnosis import Advice
from pagoda.doctor.figures import cache_of, traffic_of
from pagoda.doctor.headroom import tokens_held
from pagoda.doctor.kept import Kept, kept_of
from pagoda.doctor.window import Window
from pagoda.sizing.measured_cost import STREAMING

ALL, PART = {"kv_retention": "full"}, {"kv_retention": "streaming:sinks=4,window=1020"}


def short_of_room(
    labels: dict[str, object], prompt: int, *, preempted: bool = True, engine: str = "pagoda"
) -> Diagnosis:
    """A server of 8,192 tokens whose long conversations preempt one another, or wait."""
    server = MadeUpServer(engine, labels=labels)
    gauges = BUSY | {"num_requests_waiting": 10.0 * (not preempted), "kv_cache_usage_perc": 0.97}
    for _ in range(10):
        counts = requests(2, prompt, 400, hits=prompt - 16)
        server.second(gauges, **counts, num_preemptions_total=4.0 * preempted)
    del server.scrapes[0]
    return examined(server.scrapes)


def keeping(diagnosis: Diagnosis) -> Advice | None:
    return next((one for one in diagnosis.advice if one.flag == "--kv-retention"), None)


@pytest.mark.parametrize("preempted", [True, False])
def test_long_conversations_may_be_kept_in_part_as_the_last_remedy(preempted: bool) -> None:
    diagnosis = short_of_room(ALL, 5000, preempted=preempted)
    assert ("preemptions" if preempted else "pool_full") in codes(diagnosis)
    advice = keeping(diagnosis)
    assert advice is not None
    assert len(diagnosis.advice) >= 2
    assert advice == diagnosis.advice[-1]
    assert (advice.current, advice.proposed) == ("full", "streaming:sinks=4,window=2044")
    assert advice.action.startswith("Only where answers do not rest on what came early")
    assert "Of 5,400 tokens" in advice.effect
    assert "2.6 times as many fit" in advice.effect
    assert "is forgotten, and nothing in it is found again" in advice.effect
    assert f"{STREAMING.perplexity} over the first 4,096 tokens" in advice.effect
    assert "(+16%)" in advice.effect


@pytest.mark.parametrize(
    ("labels", "prompt", "engine"),
    [
        (ALL, 1500, "pagoda"),  # not twice what would stay
        (PART, 5000, "pagoda"),  # it is on
        ({}, 5000, "pagoda"),  # an older server
        ({"kv_retention": ""}, 5000, "pagoda"),
        ({"kv_retention": "h2o; rm -rf /"}, 5000, "pagoda"),
        (ALL, 5000, "vllm"),
    ],
    ids=str,
)
def test_it_is_not_named_where_it_is_on_or_would_not_help(
    labels: dict[str, object], prompt: int, engine: str
) -> None:
    assert keeping(short_of_room(labels, prompt, engine=engine)) is None


def test_what_stays_bounds_the_room_that_is_proposed() -> None:
    def blocks(labels: dict[str, object]) -> int:
        more = short_of_room(labels, 20_000).advice[0]
        assert more.flag == "--num-gpu-blocks-override"
        return int(more.proposed or 0)

    assert blocks(ALL) > 8 * 20_000 / 16
    assert 512 < blocks(PART) < 2 * 8 * 1100 / 16


@pytest.mark.parametrize("prompt", [100, 1000, 50_000])
def test_no_sequence_holds_more_than_stays(prompt: int) -> None:
    server = MadeUpServer(labels=PART)
    for _ in range(3):
        server.second(BUSY, **requests(4, prompt, 500))
    window = Window(server.scrapes)
    held = tokens_held(traffic_of(window), cache_of(window), 1, in_step=True)
    assert held == min(prompt + 8 + 500, 1024 + 3 * 16)


@pytest.mark.parametrize(
    ("labels", "length", "hits", "said"),
    [
        (PART, 3000, 0, {"passed_prefix": "note"}),
        (PART, 3000, 2900, {}),
        (PART, 600, 0, {"unstable_prefix": "change"}),
        (ALL, 3000, 0, {"unstable_prefix": "change"}),
    ],
)
def test_prompts_longer_than_what_stays_are_no_broken_prefix(
    labels: dict[str, object], length: int, hits: int, said: dict[str, str]
) -> None:
    server = MadeUpServer(num_blocks=20_000, labels=labels)
    for more in (0, 10, 5, 12, 2):
        server.second(BUSY, **requests(4, length + more, 16, hits=hits, prefill_s=0.2))
    diagnosis = examined(server.scrapes)
    assert codes(diagnosis) == said
    cache = diagnosis.answer("cache")
    stays = "1,024 tokens of each sequence stay (streaming:sinks=4,window=1020)"
    assert (stays in cache.summary) == (labels is PART)
    assert cache.verdict == ("unused" if said else "fine")
    if "passed_prefix" in said:
        [finding] = diagnosis.findings
        assert "1,024 tokens of each sequence" in finding.summary
        assert "the first to be forgotten" in finding.summary
        assert finding.advice[0].proposed == "full"
        assert "up to 2.9 times the memory" in finding.advice[0].effect
        assert diagnosis.is_healthy


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("full", Kept("full", None)),
        ("window:64", Kept("window:64", 64)),
        ("streaming:sinks=4,window=1020", Kept("streaming:sinks=4,window=1020", 1024)),
        ("window:0", None),
        ("streaming:sinks=4", None),
        ("window:12345678901", None),
        ("window:\u0663", None),
        ("", None),
    ],
)
def test_what_a_label_says_is_taken_by_its_name_alone(label: str, kept: Kept | None) -> None:
    assert kept_of(label) == kept


def test_what_fits_is_told_as_in_the_servers_log() -> None:
    """What stays is reckoned in blocks all the same: more requests fit than it would tell."""
    plain, told = (
        short_of_room({**PART, **more}, 5000) for more in ({}, {"kv_cache_size_tokens": 60_000})
    )
    [summary] = [each.summary for each in told.answers if each.question == "cache"]
    assert summary.startswith("60,000 tokens fit, in 512 blocks of 16")
    assert told.advice == plain.advice
