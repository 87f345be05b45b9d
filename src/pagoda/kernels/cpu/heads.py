"""The shape of attention heads, and of the blocks their K and V lie in."""

from __future__ import annotations

from typing import NamedTuple


class HeadShape(NamedTuple):
    """Shape of a layer's heads, and of the blocks they lie in."""

    num_kv_heads: int
    group_size: int
    """Query heads to a KV head."""
    head_dim: int
    """Of queries and keys."""
    block_size: int
    """Tokens in a block."""
    value_dim: int
    """Of values, which may be the first numbers of keys."""
