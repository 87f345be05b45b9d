"""Pools of well-known models, against the figures that vLLM 0.32's own allocation gives for them.

`facts/pools.json`: blocks, tokens and groups that vLLM's grouping and sizing returned for the same
layers, memory, length and tokens in flight, run once.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import Architecture, read_architecture
from pagoda.planning.pool import PoolOptions, build_pool
from pagoda.planning.releases import NEWEST, release_of
from pagoda.planning.tables import find_model, model_rows
from planning.start_ups import FACTS

POOLS: list[dict[str, Any]] = json.loads((FACTS / "pools.json").read_text())


def architecture(name: str) -> Architecture:
    found = find_model(name)
    assert found is not None, name
    return read_architecture(ModelConfig(found[1]["config"]))


@pytest.mark.parametrize("model", sorted({fact["model"] for fact in POOLS}))
def test_blocks_tokens_and_groups_are_those_of_vllm(model: str) -> None:
    for fact in POOLS:
        if fact["model"] != model:
            continue
        release = release_of(NEWEST)
        shape = architecture(model)
        options = PoolOptions(
            kv_cache_dtype=fact["cache"],
            dtype=shape.dtype,
            tensor_parallel_size=fact["ranks"],
            under_way_tokens=fact["in_flight"],
            mamba_cache_mode="align" if fact["shares_states"] else "none",
        )
        pool = build_pool(shape, options, release)
        blocks = pool.num_blocks_in(fact["memory"])
        tokens = release.print_tokens(pool, blocks, fact["length"])
        assert (blocks, tokens, len(pool.groups)) == (
            fact["blocks"], fact["tokens"], fact["groups"],
        )  # fmt: skip


BYTES_PER_TOKEN = {
    # layers × heads × (K + V) × bytes, from the models' papers and cards
    "meta-llama/Llama-2-7b-hf": 32 * 32 * 256 * 2,
    "meta-llama/Llama-3.1-70B-Instruct": 80 * 8 * 256 * 2,
    "tiiuae/falcon-7b": 32 * 1 * 128 * 2,  # multi-query
    "Qwen/Qwen3-0.6B": 28 * 8 * 256 * 2,  # heads of 128, though 1024 / 16 = 64
    "deepseek-ai/DeepSeek-V3": 61 * 576 * 2,
    "deepseek-ai/DeepSeek-V3.2-Exp": 61 * (576 * 2 + 132),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 32 * 8 * 256 * 2,
}


def test_bytes_of_a_token() -> None:
    for model in BYTES_PER_TOKEN:
        pool = build_pool(architecture(model), PoolOptions(block_size=64), release_of(NEWEST))
        assert pool.block_bytes == 64 * BYTES_PER_TOKEN[model], model


LAYERS = {
    "google/gemma-3-27b-it": {"sliding window": 52, "full attention": 10},
    "google/gemma-3n-E4B-it": {"sliding window": 16, "full attention": 4},  # 15 of 35 share
    "openai/gpt-oss-20b": {"sliding window": 12, "full attention": 12},
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": {"chunked attention": 36, "full attention": 12},
    "CohereLabs/c4ai-command-r7b-12-2024": {"sliding window": 24, "full attention": 8},
    "ai21labs/AI21-Jamba-Mini-1.6": {"recurrent state": 28, "full attention": 4},
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {"recurrent state": 36, "full attention": 12},
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": {"recurrent state": 27, "full attention": 4},
    "tiiuae/Falcon-H1-7B-Instruct": {"recurrent state": 44, "full attention": 44},
    "ibm-granite/granite-4.0-h-small": {"recurrent state": 36, "full attention": 4},
    "mistralai/Mistral-7B-v0.1": {"sliding window": 32},
    "mistralai/Mistral-7B-Instruct-v0.3": {"full attention": 32},
    "openai/whisper-large-v3": {"full attention": 32, "cross attention": 32},
}


def test_kinds_of_layers() -> None:
    for model in LAYERS:
        found = [layer.kind for layer in architecture(model).cached_layers]
        assert {kind: found.count(kind) for kind in found} == LAYERS[model], model


def layer_of(**config: Any) -> Any:
    sizes = {
        "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8,
        "intermediate_size": 128, "vocab_size": 100,
    }  # fmt: skip
    return read_architecture(ModelConfig(sizes | config)).cached_layers


def test_configs_as_they_are_on_the_hub() -> None:
    """Families leave out what is their default, or put it elsewhere."""
    [falcon, *_] = layer_of(model_type="falcon", multi_query=True, num_kv_heads=8)
    assert falcon.num_kv_heads == 1
    gemma3 = read_architecture(
        ModelConfig(
            {
                "model_type": "gemma3",
                "torch_dtype": "float16",
                "text_config": {
                    "model_type": "gemma3_text",
                    "num_hidden_layers": 34,
                    "hidden_size": 2560,
                    "sliding_window": 1024,
                },
            }
        )
    )
    assert (gemma3.dtype, gemma3.num_heads, gemma3.max_model_len) == ("float16", 8, 131_072)
    assert gemma3.cached_layers[0].attention.num_kv_heads == 4  # type: ignore[attr-defined]
    qwen = layer_of(
        model_type="qwen2", num_key_value_heads=2, sliding_window=32, use_sliding_window=False
    )
    assert {layer.kind for layer in qwen} == {"full attention"}
    nemotron = layer_of(
        model_type="nemotron_h", hybrid_override_pattern="M-*E", mamba_num_heads=2,
        mamba_head_dim=8, ssm_state_size=16,
    )  # fmt: skip
    assert [layer.kind for layer in nemotron] == ["recurrent state", "full attention"]
    listed = layer_of(model_type="openelm", num_key_value_heads=[1, 2, 4, 8])
    assert [layer.num_kv_heads for layer in listed] == [1, 2, 4, 8]
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}
    shape = read_architecture(
        ModelConfig(
            {
                "model_type": "qwen2",
                "num_hidden_layers": 1,
                "hidden_size": 64,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "intermediate_size": 128,
                "vocab_size": 100,
                "max_position_embeddings": 100,
                "rope_scaling": yarn,
            }
        )
    )
    assert (shape.max_model_len, shape.extended_max_model_len) == (100, 400)


def test_every_model_of_the_table_is_known_and_keeps_something() -> None:
    for model in sorted(model_rows()):
        shape = architecture(model)
        assert shape.assumed == (), model
        assert shape.cached_layers, model
        if shape.model_type != "mamba2":  # no end to it
            assert shape.max_model_len is not None, model
