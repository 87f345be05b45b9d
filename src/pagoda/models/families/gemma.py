"""Gemma: Llama with weights of norms that are off by one, a scaled embedding and GeGLU."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts

ARCHITECTURE = "GemmaForCausalLM"
ACTIVATION = "gelu_pytorch_tanh"
DEFAULT_NUM_KV_HEADS = 16
DEFAULT_HEAD_DIM = 256


def gemma(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """The activation is `hidden_activation`, or else `hidden_act`."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS, head_dim=DEFAULT_HEAD_DIM)
    rope = parts.rope(config, sizes, max_model_len)
    parts.require_layer_types(config, None, sizes.num_layers)
    bias = config.boolean("attention_bias", default=False)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias),
        parts.mlp(config, sizes, field=_activation_field(config), default=ACTIVATION),
    )
    layers = (layer,) * sizes.num_layers
    decoder = parts.decoder(
        config,
        ARCHITECTURE,
        sizes,
        layers,
        rope.max_position_embeddings,
        tie_word_embeddings=True,
    )
    return as_gemma(decoder)


def _activation_field(config: ModelConfig) -> str:
    """`hidden_act` of the first checkpoints says gelu and means its tanh form, the default."""
    is_newer = config.values.get("hidden_activation") is not None
    return (
        "hidden_activation"
        if is_newer or config.values.get("hidden_act") == "gelu"
        else "hidden_act"
    )


def as_gemma(decoder: DecoderSpec) -> DecoderSpec:
    """What all Gemmas share: weights of norms are stored less one, embeddings times √h."""
    return replace(
        decoder,
        norm=replace(decoder.norm, weight_offset=1.0),
        embedding_scale=decoder.hidden_size**0.5,
    )
