"""How many bytes a block of the KV cache takes, exactly, for any layer that has one.

A block holds `block_size` tokens of all layers. One attention layer stores, for each token,
`num_kv_heads` key vectors of `head_size` values and as many value vectors of `head_size_v`:

    bytes per token and layer = num_kv_heads × (head_size + head_size_v) × bits / 8

with what a format keeps beside the numbers on top (`pagoda.cache.formats`). Multi-head,
grouped-query and multi-query attention differ in `num_kv_heads` alone. Another kind of layer joins
by having the method of `LayerSpec`; those that keep something else than every token, windows,
latents, states, are in `pagoda.cache.layers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from pagoda.cache.block import num_blocks_for
from pagoda.cache.formats import vector_format
from pagoda.errors import InvalidOptionError


class PoolShape(Protocol):
    """What the size of a pool follows from: `CacheSpec`, or the groups of a mixed model."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        ...

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` occupies."""
        ...

    def num_blocks_in(self, memory_bytes: int) -> int:
        """Whole blocks that fit into `memory_bytes`."""
        ...

    def longest_request(self, num_blocks: int) -> int:
        """Tokens of the longest sequence that `num_blocks` blocks hold."""
        ...


class LayerSpec(Protocol):
    """What one layer keeps in the cache."""

    def block_bytes(self, block_size: int) -> int:
        """Bytes that `block_size` tokens of this layer take."""
        ...


@dataclass(frozen=True, slots=True)
class AttentionLayerSpec:
    """Keys and values of all tokens of one attention layer, in one format."""

    kind: ClassVar[str] = "full attention"

    num_kv_heads: int
    head_size: int
    dtype: str
    head_size_v: int | None = None
    """Width of a value vector where it differs from that of a key."""

    def __post_init__(self) -> None:
        vector_format(self.dtype)
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
        """Bytes of `block_size` tokens; a block of plain numbers is padded, never a token."""
        head_size_v = self.head_size_v or self.head_size
        bits = vector_format(self.dtype).bits(self.head_size, head_size_v)
        return -(-block_size * self.num_kv_heads * bits // 8)

    @property
    def vectors(self) -> AttentionLayerSpec:
        """The keys and values that it keeps: itself."""
        return self

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        """Layers where this is equal need as many blocks as one another for any request."""
        return ("full",)

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
        """Blocks of `block_size` tokens that a request of `num_tokens` keeps."""
        return num_blocks_for(num_tokens, block_size)

    def read_bytes(self, num_tokens: int) -> int:
        """Bytes read to attend from one token to the `num_tokens` before it."""
        return self.block_bytes(num_tokens)

    def stored_as(self, dtype: str) -> AttentionLayerSpec:
        """The same layer with its vectors in another format."""
        return replace(self, dtype=dtype)

    def sharded(self, tensor_parallel_size: int) -> AttentionLayerSpec:
        """One rank's share: heads are split, and replicated once there are too few of them."""
        return replace(self, num_kv_heads=max(1, self.num_kv_heads // tensor_parallel_size))

    def keeping_all(self) -> AttentionLayerSpec:
        """The layer in an engine that frees no blocks of a running request: itself."""
        return self

    def computed_in(self, dtype: str, state_dtype: str | None = None) -> AttentionLayerSpec:
        """The layer of a model that is run in another dtype, and stored in it."""
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> AttentionLayerSpec:
        """The layer keeps neither states nor an encoder's output: itself."""
        return self


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

    def longest_request(self, num_blocks: int) -> int:
        """Tokens of the longest sequence that `num_blocks` blocks hold."""
        return num_blocks * self.block_size
