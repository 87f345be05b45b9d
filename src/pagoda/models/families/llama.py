"""Llama 2 and 3, SmolLM2, and what shares their layout."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts

ARCHITECTURE = "LlamaForCausalLM"


def llama(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`attention_bias` puts a bias on the output projection too."""
    sizes = parts.read_sizes(config)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len)
    bias = config.boolean("attention_bias", default=False)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias),
        parts.mlp(config, sizes, bias=config.boolean("mlp_bias", default=False)),
    )
    layers = (layer,) * sizes.num_layers
    return parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
