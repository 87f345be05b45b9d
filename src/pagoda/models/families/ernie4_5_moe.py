"""ERNIE 4.5 with experts: softmax scores, corrected for choosing, shared ones, dense layers first.

Source: the model's code in transformers, where fields of experts are called as in Baidu's own.
"""

from __future__ import annotations

from dataclasses import replace

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderLayer, DecoderSpec, ExpertsSpec, MLPSpec
from pagoda.models.families import parts
from pagoda.models.families.ernie4_5 import DEFAULT_THETA
from pagoda.models.families.experts import read_counts

ARCHITECTURE = "Ernie4_5_MoeForCausalLM"
DEFAULT_NUM_KV_HEADS = 4
MOST_NORM_MIN = 1e-6
"""The least sum that scores of chosen experts are divided by, which theirs never come near."""


def ernie4_5_moe(config: ModelConfig, max_model_len: int | None) -> DecoderSpec:
    """`use_bias`, which puts a bias on the output head too, is not covered."""
    if config.boolean("use_bias", default=False):
        raise config.unsupported("use_bias", True, "a bias of the output head is not covered")
    sizes = parts.read_sizes(config, num_kv_heads=DEFAULT_NUM_KV_HEADS)
    parts.require_layer_types(config, None, sizes.num_layers)
    rope = parts.rope(config, sizes, max_model_len, default_theta=DEFAULT_THETA)
    attention = parts.attention(sizes, rope.spec)
    dense = parts.mlp(config, sizes)
    sparse = _experts(config, dense)
    first = config.integer("moe_layer_start_index", default=1, minimum=0)
    last = config.integer("moe_layer_end_index", default=-1, minimum=-1)
    last = sizes.num_layers - 1 if last == -1 else last
    step = config.integer("moe_layer_interval", default=1)
    has_experts = [
        first <= index <= last and not (index + 1) % step for index in range(sizes.num_layers)
    ]
    layers = parts.of_each(
        has_experts, lambda has: DecoderLayer(attention, sparse if has else dense)
    )
    return parts.decoder(
        config,
        ARCHITECTURE,
        sizes,
        layers,
        rope.max_position_embeddings,
        tie_word_embeddings=True,
        norm_eps=1e-5,
    )


def _experts(config: ModelConfig, dense: MLPSpec) -> ExpertsSpec:
    """Shared experts are one, as wide as all together."""
    least = config.number("moe_norm_min", default=1e-12)
    if least > MOST_NORM_MIN:
        raise config.unsupported("moe_norm_min", least, f"at most {MOST_NORM_MIN} is covered")
    count, used = read_counts(config, "moe_num_experts", "moe_k", default_count=64, default_used=6)
    inner = config.integer("moe_intermediate_size", default=1536)
    num_shared = config.integer("moe_num_shared_experts", default=2, minimum=0)
    return ExpertsSpec(
        num_experts=count,
        num_used=used,
        intermediate_size=inner,
        activation=dense.activation,
        correction_bias=True,
        shared=replace(dense, intermediate_size=inner * num_shared) if num_shared else None,
    )
