"""Cohere 2 (Command R7B and A): both halves of a layer take the same row, normed by layer norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import (
    PARALLEL_NORM,
    AttentionSpec,
    DecoderLayer,
    DecoderSpec,
    NormSpec,
)
from pagoda.models.families import parts

ARCHITECTURE = "Cohere2ForCausalLM"
DEFAULT_SLIDING_WINDOW = 4096
DEFAULT_PATTERN = 4
DEFAULT_LOGIT_SCALE = 0.0625


def cohere2(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """Layers that slide have positions; the one in `sliding_window_pattern` that does not has none.

    Heads have hidden_size / num_attention_heads numbers, whatever a config says.
    """
    own = {name: value for name, value in config.values.items() if name != "head_dim"}
    sizes = parts.read_sizes(ModelConfig(own, config.prefix))
    rope = parts.rope(config, sizes, max_model_len)
    window = config.optional_integer("sliding_window", absent=DEFAULT_SLIDING_WINDOW)
    pattern = config.integer("sliding_window_pattern", default=DEFAULT_PATTERN)
    bias = config.boolean("attention_bias", default=False)
    attentions = parts.of_each(
        parts.windows_by_pattern(config, window, sizes.num_layers, pattern),
        lambda own: parts.attention(
            sizes,
            None if own is None else rope.spec,
            sliding_window=own,
            qkv_bias=bias,
            output_bias=bias,
        ),
    )
    return parallel_decoder(config, ARCHITECTURE, sizes, attentions, rope.max_position_embeddings)


def parallel_decoder(
    config: ModelConfig,
    architecture: str,
    sizes: parts.Sizes,
    attentions: Sequence[AttentionSpec],
    longest: int,
) -> DecoderSpec:
    """Layers whose halves take the same row, under one layer norm; logits are scaled."""
    mlp = parts.mlp(config, sizes)
    layers = parts.of_each(attentions, lambda own: DecoderLayer(own, mlp, PARALLEL_NORM))
    decoder = parts.decoder(config, architecture, sizes, layers, longest, tie_word_embeddings=True)
    return replace(
        decoder,
        norm=NormSpec(config.number("layer_norm_eps", default=1e-5), is_centred=True),
        logit_scale=config.number("logit_scale", default=DEFAULT_LOGIT_SCALE),
    )
