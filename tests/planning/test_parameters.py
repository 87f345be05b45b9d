"""Counted weights against the published numbers of the table."""

from __future__ import annotations

import pytest

from pagoda.cli.plan_list import listed
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import read_architecture
from pagoda.planning.parameters import Parameters, count_parameters
from pagoda.planning.tables import model_rows
from planning.plans import LLAMA_3_8B, plan

OTHER_PARTS = ("text_config", "vision_config", "audio_config")
OF_TEXT = sorted(
    name
    for name, row in model_rows().items()
    if not any(part in row["config"] for part in OTHER_PARTS)
    and row["config"]["model_type"] != "whisper"
)
FURTHER_OFF = {
    "MiniMaxAI/MiniMax-M1-80k": 0.039,
    "openai-community/gpt2": 0.0072,
    "mistralai/Mamba-Codestral-7B-v0.1": 0.0052,
}


def counted(name: str, total: int | None = None) -> Parameters:
    config = ModelConfig(model_rows()[name]["config"])
    return count_parameters(config, read_architecture(config), total)


def test_counted_weights_come_near_the_published_number() -> None:
    for name in OF_TEXT:
        published = model_rows()[name]["parameters"]
        off = FURTHER_OFF.get(name, 0.005)
        assert counted(name).total == pytest.approx(published, rel=off), name


def test_the_exceptions_are_stated() -> None:
    off = {n for n in OF_TEXT if abs(counted(n).total / model_rows()[n]["parameters"] - 1) > 0.005}
    assert off == set(FURTHER_OFF)
    assert len(OF_TEXT) > 50


def test_the_parts_come_to_the_total_that_is_known() -> None:
    for name in sorted(model_rows()):
        published = model_rows()[name]["parameters"]
        parts = counted(name, published)
        assert parts.total == pytest.approx(published, rel=1e-7), name
        assert parts.other >= 0, name
        assert 0 < parts.active <= parts.total, name


def test_the_parts_of_a_model_one_by_one() -> None:
    """Llama-3.1-8B: 4096 wide, 32 heads and 8 for K and V of 128, an MLP of 14,336."""
    parts = counted("meta-llama/Llama-3.1-8B-Instruct")
    assert parts.embedding == parts.head == 128_256 * 4096
    [layer] = set(parts.layers)
    assert layer.attention == 4096 * (32 + 8 + 8 + 32) * 128 + 2 * 4096
    assert layer.mlp == 3 * 4096 * 14_336
    assert parts.other == 4096  # the last norm
    assert parts.active == parts.total - parts.embedding - parts.other


def test_what_a_plan_calls_active_is_what_the_list_does() -> None:
    for row in listed()["models"]:
        parts = counted(row["name"], row["parameters"])
        assert parts.visited == row["active_parameters"], row["name"]
    told = plan(LLAMA_3_8B, kv_cache_memory_bytes=2**36)
    assert told.active_parameters == told.parameters == 8_030_261_248


def test_a_token_goes_through_the_experts_that_it_chooses() -> None:
    """Qwen3-30B-A3B: 8 of 128 experts 768 wide, and a router of 2048 × 128."""
    [layer] = set(counted("Qwen/Qwen3-30B-A3B").layers)
    assert layer.experts == 128 * 3 * 2048 * 768
    assert layer.mlp == 2048 * 128
    assert layer.total - layer.active == 120 * 3 * 2048 * 768
