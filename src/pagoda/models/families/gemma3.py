"""Gemma 3: Gemma 2 with normed heads in place of caps, and positions by kind of layer."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import SANDWICH_NORM, DecoderLayer, DecoderSpec, QKNorm
from pagoda.models.families import parts
from pagoda.models.families.gemma import ACTIVATION, DEFAULT_HEAD_DIM, as_gemma
from pagoda.models.families.gemma2 import (
    DEFAULT_NUM_KV_HEADS,
    DEFAULT_SLIDING_WINDOW,
    query_scale,
    require_causal,
)
from pagoda.models.rope import RopeForm
from pagoda.models.text_part import TextPart

ARCHITECTURE = "Gemma3ForCausalLM"
DEFAULT_PATTERN = 6
TEXT = TextPart(
    "gemma3_text",
    defaults={
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
    },
)
"""Published configs of the models that see leave out what is as in the one of 4B."""
FULL = RopeForm(parts.FULL_ATTENTION)
SLIDING = RopeForm(parts.SLIDING_ATTENTION, theta_field="rope_local_base_freq", extended=False)


def gemma3(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """One layer in `sliding_window_pattern` attends to all, with a base of positions of its own."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS, head_dim=DEFAULT_HEAD_DIM)
    full = parts.rope(config, sizes, max_model_len, default_theta=1_000_000.0, form=FULL)
    sliding = parts.rope(config, sizes, max_model_len, form=SLIDING)
    require_causal(config)
    window = config.optional_integer("sliding_window", absent=DEFAULT_SLIDING_WINDOW)
    pattern = config.integer("sliding_window_pattern", default=DEFAULT_PATTERN)
    windows = parts.windows_by_pattern(config, window, sizes.num_layers, pattern)
    bias = config.boolean("attention_bias", default=False)
    cap = config.optional_number("attn_logit_softcapping")
    if cap is not None:
        raise config.unsupported("attn_logit_softcapping", cap, "only null is covered")
    mlp = parts.mlp(config, sizes, field="hidden_activation", default=ACTIVATION)
    layers = parts.of_each(
        windows,
        lambda own: DecoderLayer(
            parts.attention(
                sizes,
                (full if own is None else sliding).spec,
                sliding_window=own,
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=QKNorm.HEAD,
                scale=query_scale(config),
            ),
            mlp,
            SANDWICH_NORM,
        ),
    )
    # what an extension makes possible is in the config's length already
    longest = min(full.max_position_embeddings, sliding.max_position_embeddings)
    decoder = parts.decoder(config, ARCHITECTURE, sizes, layers, longest, tie_word_embeddings=True)
    logit_cap = config.optional_number("final_logit_softcapping")
    return replace(as_gemma(decoder), logit_cap=logit_cap)
