"""Cohere (Command R): Cohere 2 without windows, so that every layer has positions."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.families import parts
from pagoda.models.families.cohere2 import parallel_decoder

ARCHITECTURE = "CohereForCausalLM"
DEFAULT_THETA = 500_000.0


def cohere(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`use_qk_norm`, as in Command R+, norms every head by weights of its own: not covered."""
    if config.boolean("use_qk_norm", default=False):
        raise config.unsupported("use_qk_norm", True, "only false is covered")
    sizes = parts.read_sizes(config)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len, default_theta=DEFAULT_THETA)
    bias = config.boolean("attention_bias", default=False)
    attention = parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias)
    attentions = (attention,) * sizes.num_layers
    return parallel_decoder(config, ARCHITECTURE, sizes, attentions, rope.max_position_embeddings)
