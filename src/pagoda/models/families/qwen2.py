"""Qwen2 and Qwen2.5: biases on q, k and v alone; upper layers may slide."""

from __future__ import annotations

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec
from pagoda.models.families import parts

ARCHITECTURE = "Qwen2ForCausalLM"
DEFAULT_NUM_KV_HEADS = 32
DEFAULT_SLIDING_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28


def qwen2(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """Layers from `max_window_layers` on slide, where `use_sliding_window` is set."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    rope = parts.rope(config, sizes, max_model_len)
    mlp = parts.mlp(config, sizes)
    layers = parts.of_each(
        upper_layer_windows(config, sizes.num_layers),
        lambda window: DecoderLayer(
            parts.attention(sizes, rope.spec, sliding_window=window, qkv_bias=True), mlp
        ),
    )
    return parts.decoder(config, ARCHITECTURE, sizes, layers, rope.max_position_embeddings)


def upper_layer_windows(config: ModelConfig, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer by Qwen's rule."""
    first = config.integer("max_window_layers", default=DEFAULT_MAX_WINDOW_LAYERS, minimum=0)
    slides = [index >= first for index in range(num_layers)]
    return parts.layer_windows(config, slides, default_window=DEFAULT_SLIDING_WINDOW)
