"""Mixtral: Mistral with experts."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts
from pagoda.models.families.experts import experts
from pagoda.models.families.mistral import DEFAULT_NUM_KV_HEADS

ARCHITECTURE = "MixtralForCausalLM"
DEFAULT_THETA = 1_000_000.0


def mixtral(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """A `sliding_window` holds for all layers."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    rope = parts.rope(config, sizes, max_model_len, default_theta=DEFAULT_THETA)
    window = config.optional_integer("sliding_window")
    parts.require_layer_types(config, window, sizes.num_layers)
    sparse = experts(
        config,
        parts.mlp(config, sizes),
        default_count=8,
        default_used=2,
    )
    layer = DecoderLayer(parts.attention(sizes, rope.spec, sliding_window=window), sparse)
    layers = (layer,) * sizes.num_layers
    longest = rope.max_position_embeddings
    return parts.decoder(config, ARCHITECTURE, sizes, layers, longest, norm_eps=1e-5)
