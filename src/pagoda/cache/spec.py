"""How many bytes a block of the KV cache takes, exactly, for any layers.

A block holds `block_size` tokens of the layers of one group: layers that let go of the same blocks
(`pagoda.cache.groups`). Where all layers keep every token there is one group, and a block holds
`block_size` tokens of all layers. Another kind of layer joins by having the methods of
`WindowedLayer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.groups import CacheGroup, groups_of_equal_blocks
from pagoda.cache.layer import CachedLayer
from pagoda.cache.longest import longest_that_fits
from pagoda.cache.window import EVERY_TOKEN, AttentionWindow
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


class WindowedLayer(CachedLayer, Protocol):
    """A layer that Pagoda's own cache holds: what a window sees, as keys and values or latents."""

    @property
    def dtype(self) -> str:
        """The format that they are stored in."""
        ...

    @property
    def window(self) -> AttentionWindow:
        """What a row sees."""
        ...

    def stored_as(self, dtype: str) -> WindowedLayer:
        """The same layer with its vectors in another format."""
        ...


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The shape of a cache: its layers, and how many tokens make a block."""

    layers: tuple[WindowedLayer, ...]
    block_size: int
    under_way_tokens: int = 0
    """Tokens of a sequence that one step computes at most, and all that are launched: windows keep
    their blocks until these are settled."""
    groups: tuple[CacheGroup, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise InvalidOptionError("block_size", self.block_size, "must be at least 1")
        if not self.layers:
            raise InvalidOptionError("layers", self.layers, "a cache needs at least one layer")
        groups = groups_of_equal_blocks(self.layers, self.block_size)
        object.__setattr__(self, "groups", groups)

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
    def windows(self) -> tuple[AttentionWindow, ...]:
        """What the layers of each group see."""
        return tuple(self.layers[group.layer_ids[0]].window for group in self.groups)

    @property
    def group_of_layers(self) -> tuple[int, ...]:
        """The group that each layer is of."""
        found = {
            layer_id: number
            for number, group in enumerate(self.groups)
            for layer_id in group.layer_ids
        }
        return tuple(found[layer_id] for layer_id in range(len(self.layers)))

    @property
    def place_of_layers(self) -> tuple[int, ...]:
        """Each layer's place in a block of its group."""
        found = {
            layer_id: place
            for group in self.groups
            for place, layer_id in enumerate(group.layer_ids)
        }
        return tuple(found[layer_id] for layer_id in range(len(self.layers)))

    @property
    def place_bytes(self) -> tuple[int, ...]:
        """Bytes of each place of a block: of a layer of each group that has so many."""
        return max((group.page_bytes for group in self.groups), key=len)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return sum(self.place_bytes)

    @property
    def bytes_per_token(self) -> float:
        """What a token takes in blocks of all groups, while all keep it, with what these leave
        empty; whole for dtypes of whole bytes."""
        return len(self.groups) * self.block_bytes / self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` occupies at most, of all groups."""
        return sum(group.num_blocks(num_tokens, self.under_way_tokens) for group in self.groups)

    def num_blocks_in(self, memory_bytes: int) -> int:
        """Whole blocks that fit into `memory_bytes`."""
        return memory_bytes // self.block_bytes

    def longest_request(self, num_blocks: int) -> int:
        """Tokens of the longest sequence that `num_blocks` blocks hold; `EVERY_TOKEN`: any."""
        return longest_that_fits(lambda length: self.num_blocks(length) <= num_blocks, EVERY_TOKEN)
