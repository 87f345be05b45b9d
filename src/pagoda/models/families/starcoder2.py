"""Starcoder 2 (arXiv 2402.19173): layer norm, an MLP without a gate, a window in every layer."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, Learned, NormSpec
from pagoda.models.families import parts

ARCHITECTURE = "Starcoder2ForCausalLM"
ACTIVATION = "gelu_pytorch_tanh"
DEFAULT_NUM_KV_HEADS = 2


def starcoder2(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`use_bias` is one of all products but that of logits."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    window = config.optional_integer("sliding_window")
    parts.require_layer_types(config, window, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len)
    bias = config.boolean("use_bias", default=True)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, sliding_window=window, qkv_bias=bias, output_bias=bias),
        parts.plain_mlp(config, sizes, bias=bias, default=ACTIVATION),
    )
    layers = (layer,) * sizes.num_layers
    longest = rope.max_position_embeddings
    decoder = parts.decoder(config, ARCHITECTURE, sizes, layers, longest, tie_word_embeddings=True)
    eps = config.number("norm_epsilon", default=1e-5)
    return replace(decoder, norm=NormSpec(eps, is_centred=True, learned=Learned.WEIGHT_AND_BIAS))
