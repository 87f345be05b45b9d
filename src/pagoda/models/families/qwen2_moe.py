"""Qwen2-MoE: Qwen2 with experts, among them one that every row goes to."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, MLPSpec
from pagoda.models.families import parts
from pagoda.models.families.experts import experts, qwen_layers
from pagoda.models.families.qwen2 import DEFAULT_MAX_WINDOW_LAYERS, DEFAULT_SLIDING_WINDOW

ARCHITECTURE = "Qwen2MoeForCausalLM"
DEFAULT_NUM_KV_HEADS = 16


def qwen2_moe(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """Every other layer below `max_window_layers` slides, where `use_sliding_window` is set."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    rope = parts.rope(config, sizes, max_model_len)
    dense = parts.mlp(config, sizes)
    inner = config.integer("moe_intermediate_size", default=1408)
    shared = config.integer("shared_expert_intermediate_size", default=5632)
    sparse = experts(
        config,
        replace(dense, intermediate_size=inner),
        default_count=60,
        default_used=4,
        normalised=config.boolean("norm_topk_prob", default=False),
        shared=MLPSpec(shared, dense.activation),
        shared_gate=True,
    )
    bias = config.boolean("qkv_bias", default=True)
    windows = _windows(config, sizes.num_layers)
    mlps = qwen_layers(config, dense, sparse, sizes.num_layers)
    layers = parts.of_each(
        [*zip(windows, mlps, strict=True)],
        lambda kind: DecoderLayer(
            parts.attention(sizes, rope.spec, sliding_window=kind[0], qkv_bias=bias), kind[1]
        ),
    )
    return parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)


def _windows(config: ModelConfig, num_layers: int) -> tuple[int | None, ...]:
    last = config.integer("max_window_layers", default=DEFAULT_MAX_WINDOW_LAYERS, minimum=0)
    slides = [index < last and index % 2 == 0 for index in range(num_layers)]
    return parts.layer_windows(config, slides, default_window=DEFAULT_SLIDING_WINDOW)
