"""Gemma 2: Gemma with four norms a layer, caps of scores and logits, every other layer sliding."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import SANDWICH_NORM, DecoderLayer, DecoderSpec
from pagoda.models.families import parts
from pagoda.models.families.gemma import ACTIVATION, DEFAULT_HEAD_DIM, as_gemma

ARCHITECTURE = "Gemma2ForCausalLM"
DEFAULT_NUM_KV_HEADS = 4
DEFAULT_SLIDING_WINDOW = 4096
DEFAULT_QUERY_SCALAR = 256.0
PATTERN = 2


def gemma2(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """A null cap means none; a config without the fields means 50 for scores and 30 for logits."""
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS, head_dim=DEFAULT_HEAD_DIM)
    rope = parts.rope(config, sizes, max_model_len)
    require_causal(config)
    window = config.optional_integer("sliding_window", absent=DEFAULT_SLIDING_WINDOW)
    windows = parts.windows_by_pattern(config, window, sizes.num_layers, PATTERN)
    bias = config.boolean("attention_bias", default=False)
    cap = parts.optional_number(config, "attn_logit_softcapping", absent=50.0)
    mlp = parts.mlp(config, sizes, field="hidden_activation", default=ACTIVATION)
    layers = parts.of_each(
        windows,
        lambda own: DecoderLayer(
            parts.attention(
                sizes,
                rope.spec,
                sliding_window=own,
                qkv_bias=bias,
                output_bias=bias,
                scale=query_scale(config),
                logit_cap=cap,
            ),
            mlp,
            SANDWICH_NORM,
        ),
    )
    decoder = parts.decoder(
        config,
        ARCHITECTURE,
        sizes,
        layers,
        rope.max_position_embeddings,
        tie_word_embeddings=True,
    )
    logit_cap = parts.optional_number(config, "final_logit_softcapping", absent=30.0)
    return replace(as_gemma(decoder), logit_cap=logit_cap)


def query_scale(config: ModelConfig) -> float:
    """What scores are multiplied by."""
    scalar = config.number("query_pre_attn_scalar", default=DEFAULT_QUERY_SCALAR)
    return scalar**-0.5


def require_causal(config: ModelConfig) -> None:
    """Refuse an encoder."""
    if config.boolean("use_bidirectional_attention", default=False):
        raise config.unsupported("use_bidirectional_attention", True, "only false is covered")
