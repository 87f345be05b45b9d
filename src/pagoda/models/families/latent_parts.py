"""What families with multi-head latent attention share."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.models.config import ModelConfig
from pagoda.models.decoder import LatentAttentionSpec
from pagoda.models.families.parts import Sizes, read_sizes
from pagoda.models.rope import attention_scale_factor, read_rope
from pagoda.models.rope_types import Rope

_LARGEST = 2**14
"""Many times the rank or the head of any model."""


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The numbers that such a family states under the same names; as fields its defaults."""

    q_rank: int = 1536
    rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    value_dim: int | None = 128
    """None: hidden_size / num_attention_heads."""


def sizes(config: ModelConfig, defaults: LatentSizes) -> Sizes:
    """What all families state; the head is what rotates of one."""
    return read_sizes(
        config, head_dim=config.integer("qk_rope_head_dim", default=defaults.rope_dim)
    )


def latent_attention(
    config: ModelConfig, sizes: Sizes, max_model_len: int | None, defaults: LatentSizes
) -> tuple[LatentAttentionSpec, Rope]:
    """The attention of all layers, and its rotary embedding.

    `attention_bias` is one of what is made of the stream and of o. A null `q_lora_rank` means that
    queries are made of the stream at once. Raises as `read_rope`, and `ModelError` for sizes.
    """
    rank = _size(config, "kv_lora_rank", defaults.rank)
    nope_dim = _size(config, "qk_nope_head_dim", defaults.nope_dim)
    rope_dim = _size(config, "qk_rope_head_dim", defaults.rope_dim)
    if rope_dim % 2:
        raise config.error("qk_rope_head_dim", rope_dim, "must be even, for rotary positions")
    own_value_dim = defaults.value_dim or sizes.hidden_size // sizes.num_heads
    rope = read_rope(config, rope_dim, 10_000.0, max_model_len)
    bias = config.boolean("attention_bias", default=False)
    attention = LatentAttentionSpec(
        num_heads=sizes.num_heads,
        q_rank=config.optional_integer("q_lora_rank", absent=defaults.q_rank),
        rank=rank,
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=_size(config, "v_head_dim", own_value_dim),
        scale=(nope_dim + rope_dim) ** -0.5 * attention_scale_factor(config),
        rope=rope.spec,
        down_bias=bias,
        output_bias=bias,
    )
    return attention, rope


def _size(config: ModelConfig, name: str, default: int) -> int:
    value = config.integer(name, default=default)
    if value > _LARGEST:
        raise config.error(name, value, f"must be at most {_LARGEST}")
    return value
