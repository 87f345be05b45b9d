"""Seed-OSS: Llama with biases on q, k and v, and a head size of its own."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts

ARCHITECTURE = "SeedOssForCausalLM"
DEFAULT_NUM_KV_HEADS = 8
DEFAULT_HEAD_DIM = 128


def seed_oss(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`attention_out_bias` is the output's; a null `head_dim` means hidden size / heads."""
    head_dim = config.optional_integer("head_dim", absent=DEFAULT_HEAD_DIM)
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS, head_dim=head_dim)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len)
    layer = DecoderLayer(
        parts.attention(
            sizes,
            rope.spec,
            qkv_bias=config.boolean("attention_bias", default=True),
            output_bias=config.boolean("attention_out_bias", default=False),
        ),
        parts.mlp(config, sizes, bias=config.boolean("mlp_bias", default=False)),
    )
    layers = (layer,) * sizes.num_layers
    return parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
