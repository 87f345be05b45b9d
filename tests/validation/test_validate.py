"""Start-ups of vLLM that were posted, beside what the planner says."""

from __future__ import annotations

from typing import Any

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.validation.observed import read_observation, read_observations, read_shapes
from pagoda.validation.validate import validate
from pagoda.validation.verdict import Verdict, VerdictKind, report
from planning.start_ups import SHAPES, START_UPS, record, start_up


def judge(fact: dict[str, Any], shapes: dict[str, dict[str, Any]] = SHAPES) -> Verdict:
    [verdict] = validate([read_observation(record(fact))], shapes)
    return verdict


EXPLAINED = {
    "o094": "a cache in fp8, which the record does not say",
    "o136": "the need of all layers, not of the stage's own",
}


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    return [judge(fact) for fact in START_UPS]


def test_all_but_two_are_predicted_within_the_rounding_and_those_are_explained(
    verdicts: list[Verdict],
) -> None:
    assert len(verdicts) == 78
    assert {v.id for v in verdicts if not v.is_hit} == set(EXPLAINED)
    for verdict in verdicts:
        assert EXPLAINED.get(verdict.id, "") in verdict.reason
        assert not verdict.is_hit or verdict.predicted == verdict.observed


def test_the_report_counts_and_tells_what_was_not_stated(verdicts: list[Verdict]) -> None:
    told = report(verdicts)
    assert (told["cases"], told["hits"]) == (78, 76)
    assert [miss["id"] for miss in told["misses"]] == ["o136"]
    assert [silent["id"] for silent in told["unknown"]] == ["o094"]
    assert set(told["misses"][0]) == {"id", "predicted", "observed", "reason"}
    assert told["by_basis"] == {"memory": 66, "blocks": 2, "figures": 10}
    assert "states are shared" in told["not_stated"]["o096"]


@pytest.mark.parametrize("figure", ["tokens", "blocks", "concurrency"])
def test_another_figure_is_a_miss(figure: str) -> None:
    """A checker that never says no would hit these too; in o116 blocks are all there is."""
    told = [fact for fact in START_UPS if figure in fact and fact["name"] != "o116"]
    changed = [fact | {figure: type(fact[figure])(fact[figure] * 1.02 + 1)} for fact in told[::6]]
    assert len(told) > 10
    assert [fact["name"] for fact in changed if judge(fact).is_hit] == []


@pytest.mark.parametrize("step", [-0.02, 0.02])
@pytest.mark.parametrize("name", ["o003", "o031", "o052", "o058", "o100", "o102", "o112"])
def test_memory_two_hundredths_away_is_a_miss(name: str, step: float) -> None:
    fact = start_up(name)
    assert judge(fact).is_hit
    assert not judge({**fact, "cache_gib": fact["cache_gib"] + step}).is_hit


def test_a_stated_release_decides_which_tokens_are_printed() -> None:
    mixed = start_up("o058")  # half of the layers slide
    assert judge(mixed).is_hit
    assert not judge({**mixed, "release": "0.28"}).is_hit
    assert not judge({**mixed, "release": "V0 engine"}).is_hit


def test_an_old_engine_counted_tokens_where_new_ones_count_blocks() -> None:
    """100 blocks of 16 for requests of 100 tokens, which take 7 blocks: 16x once, 14.29x now."""
    shape = start_up("o114")["shape"]
    fact = {"name": "x", "shape": shape, "length": 100, "block": 16, "cache_bytes": 100 << 23}
    for release, concurrency in (("0.8.5", 16.0), ("0.10.0", 14.29)):
        printed = {**fact, "release": release, "blocks": 100, "concurrency": concurrency}
        assert judge(printed).is_hit
        assert not judge({**printed, "concurrency": 30.29 - concurrency}).is_hit


def test_a_start_up_without_memory_is_predicted_from_its_device() -> None:
    printed = start_up("o061")
    without = {name: value for name, value in printed.items() if name != "cache_gib"}
    verdict = judge(without)
    assert (verdict.basis, verdict.is_hit) == ("device", True)
    assert not judge({**without, "share": 0.5}).is_hit
    elsewhere = {**without, "device": "a device", "device_gib": None}
    assert judge(elsewhere).basis == "figures"  # one figure by another is all that is left
    assert not judge({**elsewhere, "concurrency": 58.31}).is_hit
    unknown = judge({**elsewhere, "concurrency": None})
    assert "neither memory nor blocks were printed" in unknown.reason


def test_a_shape_that_is_not_there_is_told() -> None:
    nobodys = {**start_up("o003"), "shape": "nobody/nothing"}
    assert judge(nobodys).basis == "figures"  # the concurrency follows from the tokens
    silent = judge({**nobodys, "concurrency": None})
    assert silent.reason == "no shape is given for 'nobody/nothing'"
    assert silent.kind is VerdictKind.UNKNOWN
    broken = {"Qwen/Qwen3-14B": {"layers": 40, "kv_heads": 8}}
    assert "Qwen/Qwen3-14B.head_dim=None" in judge(start_up("o003"), broken).reason
    odd = {"Qwen/Qwen3-14B": {**SHAPES["Qwen/Qwen3-14B"], "layer_pattern": {"full": 3}}}
    assert "must add up to the 40 layers" in judge(start_up("o003"), odd).reason


def test_a_hybrid_of_mamba2_needs_no_printed_block_size() -> None:
    """Granite 4.0-h 350M: 48 heads of 32 × 128, one group, in bfloat16: a page of 400 tokens."""
    fact = {name: v for name, v in start_up("o108").items() if name != "block"}
    name = "ibm-granite/granite-4.0-h-350m"
    sizes = {"n_heads": 48, "head_dim": 32, "d_state": 128, "n_groups": 1, "conv": 4}
    sized = {name: {**SHAPES[name], "mamba2": sizes}}
    assert judge(fact, sized).is_hit
    assert not judge(fact).is_hit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no observation"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "=<str of 100,000>: is not valid JSON"),
        ("[]", "must be an object"),
        ('{"tp": "two"}', "must be a whole number of at least 1"),
        ('{"tp": 0}', "must be a whole number of at least 1"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, text: str, words: str) -> None:
    path = tmp_path / "observed.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidOptionError, match=words):
        read_observations(path)
    with pytest.raises(InvalidOptionError, match="No such file"):
        read_observations(tmp_path / "nothing")


def test_a_line_is_read_or_refused_however_deeply_it_is_nested(tmp_path) -> None:
    path = tmp_path / "observed.jsonl"
    refusals = set()
    for depth in range(800, 1000):
        path.write_text('{"x": ' + "[" * depth + "]" * depth + "}")
        try:
            assert len(read_observations(path)) == 1
        except InvalidOptionError as error:
            refusals.add(error.limit)
    assert "is nested too deeply" in refusals
    assert len(refusals) == 2


def test_shapes_that_are_nested_too_deeply_are_refused(tmp_path) -> None:
    path = tmp_path / "architectures.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InvalidOptionError, match="is not JSON"):
        read_shapes(path)
