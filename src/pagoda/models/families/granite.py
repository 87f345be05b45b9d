"""Granite 3: Llama with multipliers of embeddings, scores, what is added, and logits."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts

ARCHITECTURE = "GraniteForCausalLM"


def granite(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`logits_scaling` divides; the other three multiply."""
    sizes = parts.read_sizes(config)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len)
    bias = config.boolean("attention_bias", default=False)
    layer = DecoderLayer(
        parts.attention(
            sizes,
            rope.spec,
            qkv_bias=bias,
            output_bias=bias,
            scale=config.number("attention_multiplier", default=1.0),
        ),
        parts.mlp(config, sizes, bias=config.boolean("mlp_bias", default=False)),
        residual_scale=config.number("residual_multiplier", default=1.0),
    )
    layers = (layer,) * sizes.num_layers
    decoder = parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
    return replace(
        decoder,
        embedding_scale=config.number("embedding_multiplier", default=1.0),
        logit_scale=1.0 / config.number("logits_scaling", default=1.0),
    )
