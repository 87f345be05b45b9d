"""Granite 3: Llama with multipliers of embeddings, scores, what is added, and logits."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, MLPSpec
from pagoda.models.families import parts
from pagoda.models.families.experts import experts

ARCHITECTURE = "GraniteForCausalLM"


def granite(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`logits_scaling` divides; the other three multiply."""
    return _granite(config, ARCHITECTURE, max_model_len)


def granite_moe(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """Granite with experts."""
    decoder = _granite(config, "GraniteMoeForCausalLM", max_model_len)
    layer = decoder.layers[0]  # as all
    assert isinstance(layer.mlp, MLPSpec)
    sparse = experts(config, layer.mlp, default_count=8, default_used=2)
    return replace(decoder, layers=(replace(layer, mlp=sparse),) * len(decoder.layers))


def _granite(config: ModelConfig, architecture: str, max_model_len: int | None) -> DecoderSpec:
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
    decoder = parts.decoder(config, architecture, sizes, layers, rope.max_position_embeddings)
    return replace(
        decoder,
        embedding_scale=config.number("embedding_multiplier", default=1.0),
        logit_scale=1.0 / config.number("logits_scaling", default=1.0),
    )
