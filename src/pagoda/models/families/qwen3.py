"""Qwen3: RMS norm on every query and key head, and a head size of its own."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, QKNorm
from pagoda.models.families import parts
from pagoda.models.families.qwen2 import DEFAULT_NUM_KV_HEADS, upper_layer_windows

ARCHITECTURE = "Qwen3ForCausalLM"
DEFAULT_HEAD_DIM = 128


def qwen3(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`attention_bias` puts a bias on q, k, v and the output projection."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS, head_dim=DEFAULT_HEAD_DIM)
    rope = parts.rope(config, sizes, max_model_len)
    mlp = parts.mlp(config, sizes)
    bias = config.boolean("attention_bias", default=False)
    layers = parts.of_each(
        upper_layer_windows(config, sizes.num_layers),
        lambda window: DecoderLayer(
            parts.attention(
                sizes,
                rope.spec,
                sliding_window=window,
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=QKNorm.HEAD,
            ),
            mlp,
        ),
    )
    return parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
