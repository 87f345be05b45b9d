"""Qwen3-MoE: Qwen3 with experts."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, QKNorm
from pagoda.models.families import parts
from pagoda.models.families.experts import experts, qwen_layers
from pagoda.models.families.qwen2 import DEFAULT_SLIDING_WINDOW

ARCHITECTURE = "Qwen3MoeForCausalLM"
DEFAULT_NUM_KV_HEADS = 4


def qwen3_moe(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """All layers slide where `use_sliding_window` is set; heads have no size of their own."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    rope = parts.rope(config, sizes, max_model_len)
    window = None
    if config.boolean("use_sliding_window", default=False):
        window = config.optional_integer("sliding_window", absent=DEFAULT_SLIDING_WINDOW)
    parts.require_layer_types(config, window, sizes.num_layers)
    dense = parts.mlp(config, sizes)
    inner = config.integer("moe_intermediate_size", default=768)
    sparse = experts(
        config,
        replace(dense, intermediate_size=inner),
        default_count=128,
        default_used=8,
        normalised=config.boolean("norm_topk_prob", default=False),
    )
    bias = config.boolean("attention_bias", default=False)
    attention = parts.attention(
        sizes,
        rope.spec,
        sliding_window=window,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNorm.HEAD,
    )
    mlps = qwen_layers(config, dense, sparse, sizes.num_layers)
    layers = parts.of_each(mlps, lambda mlp: DecoderLayer(attention, mlp))
    return parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
