"""Start-ups of models that the planner had not been tried on, with the thread of each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagoda.validation.observed import read_observation
from pagoda.validation.validate import validate
from pagoda.validation.verdict import Verdict, VerdictKind
from planning.start_ups import FACTS, SHAPES, record

UNSEEN: list[dict[str, Any]] = json.loads((FACTS / "unseen.json").read_text())
SILENT = {
    "u26": "no shape is given",
    "u27": "its draft is a model of its own",
    "u28": "neither memory nor blocks were printed",
}


def judge(fact: dict[str, Any]) -> Verdict:
    [verdict] = validate([read_observation(record(fact))], SHAPES)
    return verdict


def unseen(name: str) -> dict[str, Any]:
    return next(fact for fact in UNSEEN if fact["name"] == name)


def test_each_says_where_it_was_posted() -> None:
    assert all(fact["source"].startswith("github.com/") for fact in UNSEEN)


@pytest.mark.parametrize("name", [fact["name"] for fact in UNSEEN])
def test_it_comes_out_or_leaves_out_what_decides(name: str) -> None:
    verdict = judge(unseen(name))
    if name in SILENT:
        assert verdict.kind is VerdictKind.UNKNOWN
        assert verdict.reason.startswith(SILENT[name])
    else:
        assert verdict.is_hit, verdict.reason


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("u10", {"needed_gib": 10.14}),
        ("u10", {"longest": 122240}),
        ("u18", {"longest": 37120}),
        ("u20", {"needed_gib": 1.00}),  # 576 numbers need 0.95, 640 of them 1.05
        ("u11", {"longest": 6144}),
        ("u14", {"concurrency": 997.18}),
        ("u23", {"host_blocks": 900}),  # 859 of 640 numbers, 954 of 576
        ("u25", {"host_blocks": 3818}),
        ("u03", {"tokens": 301684}),
    ],
)
def test_another_figure_is_no_hit(name: str, change: dict[str, Any]) -> None:
    assert not judge({**unseen(name), **change}).is_hit


def test_a_draft_that_no_flag_names_is_told_apart() -> None:
    """The figures of a model with one more layer, and the post says nothing of it."""
    without = {**unseen("u03"), "words": None}
    verdict = judge(without)
    assert verdict.kind is VerdictKind.UNKNOWN
    assert "a draft of one layer" in verdict.reason


def test_a_draft_may_stand_in_the_models_name_alone() -> None:
    fact = {**unseen("u03"), "words": None, "model": "Qwen3.6-27B-FP8-MTP"}
    assert judge(fact).is_hit
    assert "a draft of 1 layers and 3 tokens" in judge(fact).unstated


def test_a_refusal_may_stand_in_words_alone() -> None:
    """gpt-oss-120b: 18 layers of all tokens, 18 with windows, each counted by itself."""
    words = (
        "max seq len (131072), (4.79 GiB KV cache is needed, larger than the available KV cache "
        "memory (4.06 GiB); the estimated maximum model length is 109776"
    )
    row = {"id": "x", "config_key": "openai/gpt-oss-120b", "version": "0.10.2", "quote": words}
    [verdict] = validate([read_observation(row)], {})
    assert verdict.observed == {"needed_gib": 4.79, "estimated_max_model_len": 109776}
    assert verdict.is_hit, verdict


@pytest.mark.parametrize(
    ("version", "tokens"),
    [("0.20.0", 67_072), ("0.20.1rc1.dev16", 67_072), ("0.20.1", 257_684), ("0.20.x", 257_684)],
)
def test_the_tokens_of_a_hybrid_are_printed_in_two_ways_at_0_20(version: str, tokens: int) -> None:
    """128 blocks of 2,096 tokens in 4 groups, or as many requests as 69 blocks each hold."""
    fact = {
        "name": "x", "shape": "Qwen/Qwen3.5-35B-A3B", "release": version, "cached_in": "fp8",
        "length": 131072, "cache_bytes": 128 * 10 * 2096 * 1024, "tokens": tokens,
    }  # fmt: skip
    if tokens > 100_000:
        fact["tokens"] = int(128 / 69 * 131072)
    assert judge(fact).is_hit
