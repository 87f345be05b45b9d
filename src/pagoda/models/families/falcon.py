"""Falcon: an MLP without a gate, beside attention with one KV head or a few (arXiv 2311.16867)."""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import (
    PARALLEL_NORM,
    PARALLEL_NORMS,
    PRE_NORM,
    DecoderLayer,
    DecoderSpec,
    Learned,
    NormPlacement,
    NormSpec,
)
from pagoda.models.families import parts

ARCHITECTURE = "FalconForCausalLM"
GROUPED = "new_decoder_architecture"
DEFAULT_LENGTH = 2048


def falcon(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """Heads have hidden_size / num_attention_heads numbers. `alibi` is not covered."""
    if config.boolean("alibi", default=False):
        raise config.unsupported("alibi", True, "only false, rotary positions, is covered")
    own = _own_fields(config)
    sizes = parts.read_sizes(own)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(own, sizes, max_model_len)
    bias = config.boolean("bias", default=False)
    layer = DecoderLayer(
        parts.attention(sizes, rope.spec, qkv_bias=bias, output_bias=bias),
        parts.plain_mlp(config, sizes, bias=bias, field="activation", default="gelu"),
        _norms(config),
    )
    layers = (layer,) * sizes.num_layers
    longest = rope.max_position_embeddings
    decoder = parts.decoder(config, ARCHITECTURE, sizes, layers, longest, tie_word_embeddings=True)
    eps = config.number("layer_norm_epsilon", default=1e-5)
    return replace(decoder, norm=NormSpec(eps, is_centred=True, learned=Learned.WEIGHT_AND_BIAS))


def _own_fields(config: ModelConfig) -> ModelConfig:
    """Sizes under their usual names."""
    heads = config.integer("num_attention_heads")
    given = config.optional_integer("num_kv_heads") or heads
    if config.boolean(GROUPED, default=False):
        kv_heads = given
    elif config.boolean("multi_query", default=True):
        kv_heads = 1  # published configs name as many as there are query heads
    elif given == heads:
        kv_heads = heads
    else:
        limit = f"must be the {heads} attention heads without multi_query and {GROUPED}"
        raise config.error("num_kv_heads", given, limit)
    if heads % kv_heads:
        raise config.error("num_kv_heads", kv_heads, f"must divide the {heads} attention heads")
    inner = config.optional_integer("ffn_hidden_size") or 4 * config.integer("hidden_size")
    own = {
        "max_position_embeddings": DEFAULT_LENGTH,
        **config.values,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "head_dim": None,
    }
    return ModelConfig(own, config.prefix)


def _norms(config: ModelConfig) -> NormPlacement:
    """One norm for both halves of a layer, or one for each, of what the layer takes."""
    is_grouped = config.boolean(GROUPED, default=False)
    if not config.boolean("parallel_attn", default=True):
        if is_grouped:
            raise config.unsupported("parallel_attn", False, f"only true is covered with {GROUPED}")
        return PRE_NORM
    name = "num_ln_in_parallel_attn"
    count = config.optional_integer(name) or (2 if is_grouped else 1)
    if count > 1 + is_grouped:
        limit = "1 or 2 are covered" if is_grouped else f"only 1 is covered without {GROUPED}"
        raise config.unsupported(name, count, limit)
    return PARALLEL_NORMS if count == 2 else PARALLEL_NORM
