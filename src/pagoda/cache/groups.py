"""Layers of a model that share blocks: groups, and what a block of the pool then takes.

A pool has blocks of one size, so layers that keep different things are put into groups that take
equally many bytes a block:

    layers   F F F F  S S S S S S S S S S            F full attention, S sliding window
    groups   [F F F F] [S S S S] [S S S S] [S S . .]  4 layers each, the last padded

Size of a group: the layers of the rarer kind; those of the commoner one where these are fewer than
1.5 times as many. Pages are made equal first: a smaller one that divides the largest grows its
block, another is padded. A group's layers are taken in turn, so that stages of a pipeline get their
share of each. Where all layers need the same blocks they are one group, whatever their pages.
Rules: vLLM 0.32; those before 0.9.2 made one group of everything.

Pagoda's own blocks (`groups_of_equal_blocks`) all hold equally many tokens, so that one chain of
hashes stands for all groups. A table has no more of them than its tokens fill, where vLLM's formula
counts one to spare, for a window that does not begin with a block. Where layers are stored in
different formats, the pages of all groups that lie in one place of a block take as much as the
largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache.layer import CachedLayer
from pagoda.cache.slots import num_blocks_for
from pagoda.cache.state import StateLayerSpec
from pagoda.errors import UnsupportedModelError

_MERGE_BELOW = 1.5


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with one block table."""

    layer: CachedLayer
    """Any of them: they need equally many blocks."""
    layer_ids: tuple[int, ...]
    block_size: int
    """Tokens of one of its blocks."""
    page_bytes: tuple[int, ...]
    """Each layer's part of a block, in the order of `layer_ids`, padding included."""
    has_spare: bool = True
    """A window may be counted one block more than the tokens fill."""

    def bytes_on(self, layer_ids: range) -> int:
        """Bytes of a block for those of its layers that are in `layer_ids`."""
        pages = zip(self.layer_ids, self.page_bytes, strict=True)
        return sum(page for layer_id, page in pages if layer_id in layer_ids)

    def num_blocks(self, num_tokens: int, under_way_tokens: int) -> int:
        """Blocks that a request of `num_tokens` keeps."""
        kept = self.layer.num_blocks(num_tokens, self.block_size, under_way_tokens)
        return kept if self.has_spare else min(kept, num_blocks_for(num_tokens, self.block_size))


def form_groups(
    layers: Sequence[CachedLayer], block_size: int, *, mixed: bool = True
) -> tuple[CacheGroup, ...]:
    """The groups of a rank's layers; `mixed` False makes one group that keeps every token.

    Raises `UnsupportedModelError` where pages cannot be made equal.
    """
    if not layers:
        return ()
    if not mixed:
        layers = [layer.keeping_all() for layer in layers]
    pages = tuple(_pages(layers, block_size))
    if len({layer.shares_blocks_with for layer in layers}) == 1:
        return (CacheGroup(layers[0], tuple(range(len(layers))), block_size, pages),)
    page = max(pages)
    sizes = []
    alike: dict[tuple[object, ...], list[int]] = {}
    for layer_id, (layer, own_page) in enumerate(zip(layers, pages, strict=True)):
        sizes.append(_grown_block_size(layer, own_page, block_size, page))
        key = (*layer.shares_blocks_with, own_page, sizes[-1])
        alike.setdefault(key, []).append(layer_id)
    size = _group_size([len(ids) for ids in alike.values()])
    groups = []
    for ids in alike.values():
        num_groups = -(-len(ids) // size)
        for first_id in range(num_groups):
            own = tuple(ids[first_id::num_groups])
            groups.append(CacheGroup(layers[own[0]], own, sizes[own[0]], (page,) * len(own)))
    return tuple(groups)


def groups_of_equal_blocks(
    layers: Sequence[CachedLayer], block_size: int
) -> tuple[CacheGroup, ...]:
    """The groups of Pagoda's own cache: at least one layer, `block_size` tokens in every block.

    The layers of a group come in the order of their places in a block, the largest pages first.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for layer_id, layer in enumerate(layers):
        alike.setdefault(layer.shares_blocks_with, []).append(layer_id)
    pages = _pages(layers, block_size)
    size = _group_size([len(ids) for ids in alike.values()])
    parts = []
    for ids in alike.values():
        if len(alike) > 1:
            ids.sort(key=lambda layer_id: -pages[layer_id])
        num_groups = -(-len(ids) // size)
        parts += [tuple(ids[first::num_groups]) for first in range(num_groups)]
    places = [max(pages[ids[place]] for ids in parts if place < len(ids)) for place in range(size)]
    return tuple(
        CacheGroup(layers[ids[0]], ids, block_size, tuple(places[: len(ids)]), has_spare=False)
        for ids in parts
    )


def _pages(layers: Sequence[CachedLayer], block_size: int) -> list[int]:
    """Bytes of each layer's part of a block."""
    found = {layer: layer.block_bytes(block_size) for layer in dict.fromkeys(layers)}
    return [found[layer] for layer in layers]


def _grown_block_size(layer: CachedLayer, own: int, block_size: int, page_bytes: int) -> int:
    """`own`: bytes of the layer's part of a block of `block_size` tokens."""
    if own > page_bytes:
        raise UnsupportedModelError("page", own, f"larger than the pool's page of {page_bytes}")
    if layer.kind == StateLayerSpec.kind or page_bytes % own:
        return block_size
    return block_size * (page_bytes // own)


def _group_size(counts: Sequence[int]) -> int:
    fewest, most = min(counts), max(counts)
    return most if most < fewest * _MERGE_BELOW else fewest
