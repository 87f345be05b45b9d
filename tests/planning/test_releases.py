"""What changed between releases: how latents are kept, and which rules a version may mean."""

from __future__ import annotations

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import read_architecture
from pagoda.planning.planned_engine import planned_engine
from pagoda.planning.pool import PoolOptions, build_pool
from pagoda.planning.releases import releases_told
from pagoda.planning.tables import find_model
from planning.plans import plan

DEEPSEEK = "deepseek-ai/DeepSeek-R1"


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ("0.32", "≥ 0.29"), ("0.28.1", "0.21 to 0.28"), ("0.20.2", "0.20.1"), ("0.20.0", "0.20.0"),
        ("0.8.4", "0.7 and 0.8"), ("0.6.1", "before 0.7"), ("V0 engine", "before 0.9.2"),
    ],
)  # fmt: skip
def test_a_version_has_its_rules(version: str, first: str) -> None:
    assert releases_told(version)[0].name == first


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.20.x", ["0.20.1", "0.20.0"]),
        ("0.20.1rc1.dev16+g7a1eb8ac2", ["0.20.1", "0.20.0"]),
        ("0.21.0rc2", ["0.21 to 0.28", "0.20.1"]),
        ("0.20.1", ["0.20.1"]),
        ("0.8.4", ["0.7 and 0.8", "before 0.9.2"]),
    ],
)
def test_a_line_or_an_early_build_may_mean_two_sets(version: str, names: list[str]) -> None:
    assert [release.name for release in releases_told(version)] == names


@pytest.mark.parametrize(
    ("version", "token_bytes"),
    [("0.9.1", 61 * 1152), ("0.8.4", 61 * 1280), ("0.6.1", 61 * 128 * 2 * 256 * 2 // 8)],
)
def test_latents_were_expanded_then_padded_then_neither(version: str, token_bytes: int) -> None:
    found = find_model(DEEPSEEK)
    assert found is not None
    model = read_architecture(ModelConfig(found[1]["config"]))
    options = PoolOptions(block_size=16, tensor_parallel_size=8)
    pool = build_pool(model, options, releases_told(version)[0])
    assert pool.block_bytes == 16 * token_bytes


def test_a_refusal_tells_the_length_that_the_engine_tells() -> None:
    """Without the block that the pool keeps to itself: 1,000 of them hold 16,000 tokens."""
    from pagoda.planning.plan import longest_requests
    from pagoda.planning.request import PlanRequest
    from planning.plans import LLAMA_3_8B, facts

    longest = longest_requests(facts(LLAMA_3_8B), PlanRequest(num_gpu_blocks_override=1000))
    assert (longest.perhaps, longest.certain) == (16_000, 15_984)


def test_one_line_is_printed_from_0_29_on() -> None:
    lines = {
        version: len(plan("Qwen/Qwen3-8B", engine=f"vllm@{version}", gpu="H100").high.lines)  # type: ignore[union-attr]
        for version in ("0.28", "0.29")
    }
    assert lines == {"0.28": 3, "0.29": 2}


@pytest.mark.parametrize(
    ("name", "title", "rules"),
    [
        ("vllm", "vllm 0.32", "≥ 0.29"),
        ("vllm@v0.8.4", "vllm 0.8.4", "0.7 and 0.8"),
        ("vllm@0.20.x", "vllm 0.20.x", "0.20.1"),
        ("pagoda", "pagoda", "pagoda"),
    ],
)
def test_the_engine_that_is_planned_for_is_told_by_its_name(
    name: str, title: str, rules: str
) -> None:
    engine = planned_engine(name)
    assert (engine.title, engine.rules) == (title, rules)
    assert engine.is_pagoda == (name == "pagoda")
    assert engine.knows_format("nvfp4") == (name in ("vllm", "pagoda"))


@pytest.mark.parametrize(
    "name", ["", "vllm@", "vllm@new", "vllm@0.19.1!", "VLLM", "sglang", "pagoda@0.1", "pagoda@"]
)
def test_another_engine_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        planned_engine(name)
    assert (refused.value.field, refused.value.value) == ("engine", name)
