"""Mistral: Llama without biases, with a sliding window on every layer."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts
from pagoda.models.text_part import TextPart

ARCHITECTURE = "MistralForCausalLM"
DEFAULT_NUM_KV_HEADS = 8
DEFAULT_SLIDING_WINDOW = 4096
TEXT = TextPart("mistral")
"""Of Mistral Small 3.1 and later, which see."""


def mistral(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """A null `sliding_window` means none; a config without the field means 4,096 tokens."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    rope = parts.rope(config, sizes, max_model_len)
    window = config.optional_integer("sliding_window", absent=DEFAULT_SLIDING_WINDOW)
    parts.require_layer_types(config, window, sizes.num_layers)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, sliding_window=window), parts.mlp(config, sizes)
    )
    layers = (layer,) * sizes.num_layers
    return parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)
