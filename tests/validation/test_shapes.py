"""A shape from a table of observations gives the pool that the model's own config gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagoda.errors import ModelError
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import read_architecture
from pagoda.planning.pool import PoolOptions, build_pool
from pagoda.planning.releases import DISTINCT
from pagoda.planning.tables import find_model
from pagoda.validation.shapes import read_shape

SHAPES: dict[str, dict[str, Any]] = {
    "google/gemma-3-27b-it": {
        "layers": 62, "kv_heads": 16, "head_dim": 128, "sliding_window": 1024,
        "layer_pattern": {"sliding_attention": 52, "full_attention": 10},
    },
    "google/gemma-4-31B-it": {
        "layers": 60, "kv_heads": 16, "head_dim": 256, "global_head_dim": 512,
        "global_kv_heads": 4, "sliding_window": 1024, "k_eq_v": True,
        "layer_pattern": {"sliding_attention": 50, "full_attention": 10},
    },
    "openai/gpt-oss-120b": {
        "layers": 36, "kv_heads": 8, "head_dim": 64, "sliding_window": 128,
        "layer_pattern": ["sliding_attention", "full_attention"] * 18,
    },
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": {
        "layers": 48, "kv_heads": 8, "head_dim": 128, "sliding_window": 8192,
        "layer_pattern": {"chunked_attention": 36, "full_attention": 12},
    },
    "deepseek-ai/DeepSeek-V2-Lite-Chat": {
        "layers": 27, "kv_heads": 16, "head_dim": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    },
    "deepseek-ai/DeepSeek-V3.2-Exp": {
        "layers": 61, "kv_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "index_head_dim": 128,
    },
    "mistralai/Mistral-7B-v0.1": {
        "layers": 32, "kv_heads": 8, "head_dim": 128, "sliding_window": 4096,
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        "layers": 48, "kv_heads": 2, "head_dim": 256,
        "layer_pattern": {"linear_attention": 36, "full_attention": 12},
        "linear": {"n_k": 16, "n_v": 32, "dk": 128, "dv": 128, "conv": 4, "ssm_dtype": "bfloat16"},
    },
    "ibm-granite/granite-4.0-h-small": {
        "layers": 40, "kv_heads": 8, "head_dim": 128,
        "layer_pattern": {"mamba": 36, "attention": 4},
        "mamba2": {"n_heads": 128, "head_dim": 64, "d_state": 128, "n_groups": 1, "conv": 4},
    },
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": {
        "layers": 56, "kv_heads": 8, "head_dim": 128,
        "layer_pattern": {"mamba": 27, "attention": 4, "mlp": 25},
        "mamba2": {
            "num_heads": 128, "headdim": 80, "state_size": 128, "groups": 8, "d_conv": 4,
            "ssm_dtype": "float32",
        },
    },
    "openai/whisper-large-v3": {
        "layers": 32, "kv_heads": 20, "head_dim": 64, "dtype": "float16",
        "encoder": {"decoder_self": 32, "decoder_cross": 32, "max_encoder_tokens_in_log": 1500},
    },
}  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", SHAPES)
def test_a_shape_gives_the_pool_of_the_config(model: str, ranks: int) -> None:
    found = find_model(model)
    assert found is not None
    own = read_architecture(ModelConfig(found[1]["config"]))
    given = read_shape(SHAPES[model], model)
    for release in DISTINCT:
        for dtype in ("auto", "fp8"):
            options = PoolOptions(kv_cache_dtype=dtype, tensor_parallel_size=ranks)
            one = build_pool(given, options, release)
            other = build_pool(replace(own, dtype=given.dtype), options, release)
            assert one.block_bytes == other.block_bytes
            assert one.num_blocks(8192) == other.num_blocks(8192)
            assert len(one.groups) == len(other.groups)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": None}, "layers"),
        ({"kv_heads": 0}, "kv_heads"),
        ({"head_dim": None}, "head_dim"),
        ({"dtype": "int9"}, "torch_dtype"),
        ({"layer_pattern": {"odd": 32}}, "layer_types"),
        ({"layer_pattern": {"full_attention": 31}}, "layer_pattern"),
        ({"layer_pattern": {"sliding_attention": 32}, "sliding_window": None}, "sliding_window"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused_by_model_and_field(
    change: dict[str, Any], field: str
) -> None:
    with pytest.raises(ModelError) as caught:
        read_shape({**SHAPES["mistralai/Mistral-7B-v0.1"], **change}, "a model")
    assert caught.value.field == f"a model.{field}"
