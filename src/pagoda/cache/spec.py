"""How many bytes a block of the KV cache takes, exactly, for any layer that has one.

A block holds `block_size` tokens of all layers. One attention layer stores, for each token,
`num_kv_heads` key vectors of `head_size` values and as many value vectors of `head_size_v`:

    bytes per token and layer = num_kv_heads × (head_size + head_size_v) × bits / 8

Multi-head, grouped-query and multi-query attention differ in `num_kv_heads` alone. Another kind
of layer joins by having the method of `LayerSpec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pagoda.cache.block import num_blocks_for
from pagoda.errors import InvalidOptionError

DTYPE_BITS = {
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "int8": 8,
    "int4": 4,
}


class LayerSpec(Protocol):
    """What one layer keeps in the cache."""

    def block_bytes(self, block_size: int) -> int:
        """Bytes that `block_size` tokens of this layer take."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionLayerSpec:
    """Keys and values of one attention layer, stored as plain numbers of one dtype."""

    num_kv_heads: int
    head_size: int
    dtype: str
    head_size_v: int | None = None
    """Width of a value vector where it differs from that of a key."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BITS:
            raise InvalidOptionError("dtype", self.dtype, f"one of {', '.join(DTYPE_BITS)}")
        for name in ("num_kv_heads", "head_size", "head_size_v"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidOptionError(name, value, "must be at least 1")

    @property
    def values_per_token(self) -> int:
        """Numbers stored for one token: keys and values of all KV heads."""
        width = self.head_size + (self.head_size_v or self.head_size)
        return self.num_kv_heads * width

    def block_bytes(self, block_size: int) -> int:
        """Bytes of `block_size` tokens; a block is padded to whole bytes, never a token."""
        return -(-block_size * self.values_per_token * DTYPE_BITS[self.dtype] // 8)


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The shape of a cache: its layers, and how many tokens make a block."""

    layers: tuple[LayerSpec, ...]
    block_size: int

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise InvalidOptionError("block_size", self.block_size, "must be at least 1")
        if not self.layers:
            raise InvalidOptionError("layers", self.layers, "a cache needs at least one layer")

    @classmethod
    def uniform(
        cls,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_size: int,
        dtype: str,
        block_size: int,
    ) -> CacheSpec:
        """A cache of `num_layers` equal attention layers."""
        layer = AttentionLayerSpec(num_kv_heads, head_size, dtype)
        return cls((layer,) * num_layers, block_size)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.block_bytes(self.block_size) for layer in self.layers)

    @property
    def bytes_per_token(self) -> float:
        """A token's share of a block; whole for every dtype of at least a byte."""
        return self.block_bytes / self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` occupies."""
        return num_blocks_for(num_tokens, self.block_size)

    def num_blocks_in(self, memory_bytes: int) -> int:
        """Whole blocks that fit into `memory_bytes`."""
        return memory_bytes // self.block_bytes
