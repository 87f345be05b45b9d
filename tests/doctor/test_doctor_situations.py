"""Situations staged on live servers, from what their metrics said: each one is told apart."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctor.doctor_metrics import READINGS, examined, recorded
from pagoda.doctor import Diagnosis, Machine, Scrape

SMOLLM2 = Machine(weight_bytes=269_030_400, kv_token_bytes=23_040, bandwidth=45e9)


@dataclass(frozen=True)
class Said:
    """What the doctor must say of a situation."""

    bound: tuple[str, ...]
    cache: str
    change: tuple[str, ...]
    next: str
    action: str
    """Words of the first advice."""


PREFILL = Said(("prefill",), "unused", (), "hardware", "computes faster")
THRASH = Said(("decode",), "thrashing", ("preemptions",), "flag", "room for")
# Without knowing the machine, whether prompts are most of it can be too near to tell.
PREFIX = Said(("prefill", "mixed"), "unused", ("unstable_prefix",), "prompts", "first lines")
SITUATIONS = {
    "pagoda-prefill": PREFILL,
    "pagoda-decode": Said(("decode",), "fine", (), "load", "More requests at once"),
    "pagoda-thrash": THRASH,
    "pagoda-prefix": PREFIX,
    "pagoda-stable": Said(("decode",), "fine", (), "load", "More requests at once"),
    "pagoda-queue": Said(("queue",), "fine", ("too_few_seats",), "flag", "--max-num-seqs"),
    "vllm-prefill": PREFILL,
    "vllm-decode": Said(("decode",), "fine", (), "load", "More requests at once"),
    "vllm-thrash": THRASH,
    "vllm-prefix": PREFIX,
    "vllm-stable": Said(("decode",), "fine", (), "load", "More requests at once"),
}


def test_every_recording_has_a_row() -> None:
    assert {path.stem for path in READINGS.glob("*.json")} == set(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_is_told_from_the_others(name: str) -> None:
    said, diagnosis = SITUATIONS[name], examined(recorded(name))
    assert diagnosis.engine == name.partition("-")[0]
    assert diagnosis.answer("bound").verdict in said.bound
    assert diagnosis.answer("cache").verdict == said.cache
    assert tuple(f.code for f in diagnosis.findings if f.severity == "change") == said.change
    assert diagnosis.is_healthy == (not said.change)
    assert diagnosis.answer("next").verdict == said.next
    assert said.action in diagnosis.advice[0].action
    assert diagnosis.missing == ()


@pytest.mark.parametrize("name", SITUATIONS)
def test_half_of_the_time_is_enough(name: str) -> None:
    scrapes = recorded(name)
    said, diagnosis = SITUATIONS[name], examined(scrapes[len(scrapes) // 2 :])
    assert diagnosis.answer("cache").verdict == said.cache
    assert tuple(f.code for f in diagnosis.findings if f.severity == "change") == said.change


@pytest.mark.parametrize("engine", ["pagoda", "vllm"])
def test_a_pool_that_thrashes_is_given_figures_to_change(engine: str) -> None:
    diagnosis = examined(recorded(f"{engine}-thrash"), SMOLLM2)
    advice = {one.flag: one for one in diagnosis.advice}
    seats = int(advice["--max-num-seqs"].proposed or 0)
    # 8,192 tokens of room; each of 48 clients holds 48 tokens at first and 448 in the end.
    assert 8192 / 448 < seats < 8192 / 248
    more = diagnosis.advice[0]
    # In blocks, whatever is told of the model: nobody can be told to shrink what is too small.
    block_size, num_blocks = (32, "256") if engine == "vllm" else (16, "512")
    assert (more.flag, more.current) == ("--num-gpu-blocks-override", num_blocks)
    assert 45 * 248 < block_size * int(more.proposed or 0) < 48 * 448
    if engine == "vllm":
        assert advice["--kv-cache-dtype"].proposed == "fp8"
    else:
        assert "--kv-cache-dtype" not in advice, "this server does not tell what it would take"


@pytest.mark.parametrize("engine", ["pagoda", "vllm"])
def test_a_broken_prefix_is_never_claimed_for_sure(engine: str) -> None:
    [finding] = examined(recorded(f"{engine}-prefix")).findings
    assert finding.confidence == "medium"
    assert "nothing in common" in finding.summary
    assert "In the latter case" in finding.summary or "begin alike for 16 tokens" in finding.summary
    assert "nothing, if they have nothing in common" in finding.advice[0].effect


@pytest.mark.parametrize("engine", ["pagoda", "vllm"])
def test_prompts_that_differ_are_a_note_and_no_change(engine: str) -> None:
    [finding] = examined(recorded(f"{engine}-prefill")).findings
    assert (finding.code, finding.severity, finding.confidence) == ("no_reuse", "note", "low")


def test_decoding_is_held_against_the_memory() -> None:
    bandwidth = examined(recorded("pagoda-decode"), SMOLLM2).answer("bandwidth")
    assert bandwidth.verdict in ("near", "between")
    read = next(one for one in bandwidth.evidence if one.unit == "bytes/s")
    assert 0.35 * 45e9 < read.value < 45e9
    assert examined(recorded("pagoda-decode")).answer("bandwidth").verdict == "unknown"
    too_slow = Machine(269_030_400, 23_040, bandwidth=1e9)
    assert examined(recorded("pagoda-decode"), too_slow).answer("bandwidth").verdict == (
        "contradiction"
    )
    assert examined(recorded("pagoda-prefill"), SMOLLM2).answer("bandwidth").verdict == "not_asked"


def test_every_figure_is_finite_and_names_its_metric() -> None:
    for name in SITUATIONS:
        for one in evidence_of(examined(recorded(name), SMOLLM2)):
            assert math.isfinite(one.value)
            assert one.metric.startswith((f"{name.partition('-')[0]}:", "--"))


def evidence_of(diagnosis: Diagnosis) -> list:  # type: ignore[type-arg]
    return [one for said in (*diagnosis.answers, *diagnosis.findings) for one in said.evidence]


@given(st.sampled_from(sorted(SITUATIONS)), st.data())
def test_whatever_a_release_does_not_tell_is_missing_and_not_guessed(
    name: str, data: st.DataObject
) -> None:
    scrapes = recorded(name)
    families = sorted({key.name for key in scrapes[0].values} - {"num_requests_running"})
    gone = set(data.draw(st.lists(st.sampled_from(families))))
    diagnosis = examined([without(scrape, gone) for scrape in scrapes], SMOLLM2)
    assert len(diagnosis.answers) == 4
    for one in evidence_of(diagnosis):
        assert math.isfinite(one.value)
    if gone & {"num_preemptions_total", "cache_config_info", "kv_cache_usage_perc"}:
        assert diagnosis.missing
    if "num_preemptions_total" in gone:
        assert "preemptions" not in {finding.code for finding in diagnosis.findings}


SENSELESS = st.one_of(
    st.floats(), st.integers(-(10**6), 10**6), st.sampled_from([0.0, 1e17, 1e300, -1.0])
)


@given(st.sampled_from(sorted(SITUATIONS)), st.data())
def test_metrics_that_make_no_sense_are_survived(name: str, data: st.DataObject) -> None:
    scrapes = recorded(name)[:6]
    keys = sorted(scrapes[0].values, key=repr)
    for index in data.draw(st.sets(st.integers(0, len(scrapes) - 1), max_size=4)):
        changed = data.draw(st.dictionaries(st.sampled_from(keys), SENSELESS, max_size=6))
        scrapes[index] = replace(scrapes[index], values={**scrapes[index].values, **changed})
    diagnosis = examined(scrapes, SMOLLM2)
    told = json.loads(json.dumps(diagnosis.as_dict(), allow_nan=False))
    assert [answer["question"] for answer in told["answers"]] == [
        "bound", "bandwidth", "cache", "next",
    ]  # fmt: skip
    assert all(math.isfinite(one.value) for one in evidence_of(diagnosis))


def without(scrape: Scrape, gone: set[str]) -> Scrape:
    values = {key: value for key, value in scrape.values.items() if key.name not in gone}
    return Scrape(scrape.time_s, scrape.engine, values)
