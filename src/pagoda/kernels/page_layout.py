"""Where the parts of a block lie: keys, values, and what is kept beside them.

A block of one layer holds `block_size` tokens of all its KV heads:

    keys of head 0, 1, … | values of head 0, 1, … | scales of keys, by head | scales of values

or, of latent attention, nothing but the keys of one head, whose first numbers are values too; where
these are codes, `latent_code` says how they lie.
How the numbers of one head lie is each device's own; kernels get the rest from here, as data.
"""

from __future__ import annotations

from typing import NamedTuple

from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.vector_code import VectorCode


class PageLayout(NamedTuple):
    """Offsets and sizes in bytes of the parts of a block of one layer."""

    block_bytes: int
    key_head_bytes: int
    """From one head's keys to the next one's; they begin the block."""
    values: int
    """Where the first head's values begin; at its keys where they are a part of these."""
    value_head_bytes: int
    key_scales: int
    """Where the first head's scales begin: [block_size], then as many offsets if there are any."""
    key_scale_bytes: int
    """From head to head; 0: keys have no scales."""
    value_scales: int
    value_scale_bytes: int


def plain_layout(num_kv_heads: int, head_size: int, block_size: int, item_size: int) -> PageLayout:
    """For plain numbers of `item_size` bytes."""
    head_bytes = head_size * block_size * item_size
    size = num_kv_heads * head_bytes
    return PageLayout(2 * size, head_bytes, size, head_bytes, 2 * size, 0, 2 * size, 0)


def latent_layout(width: int, block_size: int, item_size: int) -> PageLayout:
    """For one vector a token of `width` plain numbers, which is key and value for all heads."""
    size = width * block_size * item_size
    return PageLayout(size, size, 0, size, size, 0, size, 0)


def coded_latent_layout(code: LatentCode, block_size: int) -> PageLayout:
    """For one vector a token whose latent is stored as codes."""
    size, scales = (each * block_size for each in (code.token_bytes, code.scales_start))
    return PageLayout(size, size, 0, size, scales, size - scales, scales, 0)


def coded_layout(
    num_kv_heads: int, block_size: int, key: VectorCode, value: VectorCode
) -> PageLayout:
    """For vectors that are stored as codes."""
    parts = (key.code_bytes, value.code_bytes, key.scale_bytes, value.scale_bytes)
    key_bytes, value_bytes, key_scales, value_scales = (block_size * size for size in parts)
    values = num_kv_heads * key_bytes
    first_scale = values + num_kv_heads * value_bytes
    return PageLayout(
        block_bytes=num_kv_heads * (key_bytes + value_bytes + key_scales + value_scales),
        key_head_bytes=key_bytes,
        values=values,
        value_head_bytes=value_bytes,
        key_scales=first_scale,
        key_scale_bytes=key_scales,
        value_scales=first_scale + num_kv_heads * key_scales,
        value_scale_bytes=value_scales,
    )
