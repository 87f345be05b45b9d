"""Who computes what in prefill attention: made once a step, for every layer of a kind.

A tile has the queries of some tokens of one sequence. Many tiles fill a GPU. Few that see much, as
of a prompt of which all but the end was found in the cache, would leave most of it idle, so they
are cut over the context too:

    context   |  split 0  |  split 1  |  split 2  | rows of the tile |
    partial   | parts of split 0: every row and head | of split 1 | of split 2 |  --> merged

How a tile is cut is a function of its own sequence's rows and context alone: a sequence has the
same result alone and in a batch, in every bit. Memory for parts is as large as it is, so tiles
whose parts do not fit go to later rounds, which use it again: that changes no result either.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from pagoda.kernels.array import Array
from pagoda.kernels.gpu.parts import PREFILL_PARTS

QUERY_ROWS = 128
"""Query rows of a tile at most: so each key that is read meets as many queries, and the product is
bound by arithmetic."""

SPLIT_FROM = 1024
"""Tokens a tile sees before it is split: fewer are done before a second launch has paid."""
SPLIT_TOKENS = 256
"""Tokens of the shortest split: writing and reading its parts then costs a few percent."""
SPLIT_UNIT = 64
"""Splits start at multiples of it: the longest tile of keys that any dtype has."""
_WANTED_PROGRAMS = 256
"""Programs that a split sequence is to have: one or two for each multiprocessor of a large GPU."""
_MOST_SPLITS = 64

TILE_NUMBERS, MERGE_NUMBERS = 8, 4
_INT_BYTES = 4
_NOT_SPLIT = -1

A = TypeVar("A", Array, torch.Tensor)


class AttentionKind(NamedTuple):
    """Layers of one kind share a tiling."""

    num_heads: int
    num_kv_heads: int
    group: int = 0
    """Of the cache: the first whose layers see the same."""

    @property
    def group_size(self) -> int:
        """Query heads of a KV head: 1 to 16, or of latents all that there are."""
        return self.num_heads // self.num_kv_heads

    @property
    def query_tokens(self) -> int:
        """Tokens of a tile: twice as many as half a tile has room for, so that halves are equal.

        Two at least: many heads of latents make more rows, which go to more programs."""
        return 2 * max(1, QUERY_ROWS // 2 // self.group_size)

    @property
    def most_splits(self) -> int:
        """Splits of all tiles of a sequence together, where any is split."""
        return min(_MOST_SPLITS, -(-_WANTED_PROGRAMS // self.num_kv_heads))

    def most_tiling_bytes(self, num_tokens: int, num_sequences: int) -> int:
        """Bytes of the tiling for so many tokens of so many sequences, two or more each."""
        pairs = num_tokens // 2
        most_tiles = pairs + min(num_sequences, pairs) * self.most_splits
        return most_tiles * (TILE_NUMBERS + MERGE_NUMBERS) * _INT_BYTES


class Round(NamedTuple):
    """Launches whose parts are in memory at the same time."""

    first_tile: int
    num_tiles: int
    first_merge: int
    num_merges: int


class PrefillTiling(NamedTuple, Generic[A]):
    """The tiles of one kind of layers: arrays on the host, then tensors on the device."""

    kind: AttentionKind
    tiles: A
    """[n, 8] int32: sequence, first row of the batch, rows, position of the first row in its
    context, tokens begin and end that are walked, first partial row or -1 if nothing is split, and
    whether sinks are walked before them."""
    merges: A
    """[m, 4] int32, of each tile that is split: first row, rows, first partial row, splits. The
    rows of a split follow one another, and then those of the next; a partial row is num_heads
    parts."""
    rounds: tuple[Round, ...]


def tile_prefill(
    kind: AttentionKind,
    query_starts: Array,
    context_lens: Array,
    wanted: Array,
    windows: Array | None = None,
    num_parts: int = PREFILL_PARTS,
) -> PrefillTiling[Array]:
    """Tiles that cover all rows of the sequences `wanted`; in a round the longest come first.

    query_starts: [sequences + 1]; context_lens: [sequences], the step's own rows included;
    windows: [sequences, 2], what each sees and its sinks, None: all; num_parts: of a round, enough
    for any tile. Work that starts with what takes longest leaves no long tail.
    """
    num_rows = np.diff(query_starts)[wanted].astype(np.int64)
    counts = -(-num_rows // kind.query_tokens)
    own = np.repeat(np.arange(len(wanted)), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    first = (np.arange(len(own)) - before) * kind.query_tokens
    rows = np.minimum(num_rows[own] - first, kind.query_tokens)
    position = (context_lens[wanted] - num_rows)[own] + first
    begin, end = np.zeros_like(position), position + rows
    if windows is not None:
        begin = _first_seen(position, windows[wanted][own].astype(np.int64))
    length = _split_length(end - begin, kind.most_splits // counts[own])
    num_splits = -(-(end - begin) // length)

    is_split = num_splits > 1
    partial, of_round = np.full(len(own), _NOT_SPLIT), np.zeros(len(own), np.int64)
    partial[is_split], of_round[is_split] = _places(
        (rows * num_splits)[is_split], num_parts // kind.num_heads
    )
    start = query_starts[wanted][own] + first
    merges = np.stack([start, rows, partial, num_splits], axis=1)[is_split]

    tile = np.repeat(np.arange(len(own)), num_splits)
    split = np.arange(len(tile)) - np.repeat(np.cumsum(num_splits) - num_splits, num_splits)
    begin = begin[tile] + split * length[tile]
    end = np.minimum(begin + length[tile], end[tile])
    partial = np.where(is_split[tile], partial[tile] + split * rows[tile], _NOT_SPLIT)
    tiles = np.stack(
        [wanted[own][tile], start[tile], rows[tile], position[tile], begin, end, partial,
         split == 0], axis=1,
    )  # fmt: skip
    order = np.lexsort((begin - end, of_round[tile]))
    return PrefillTiling(
        kind,
        tiles[order].astype(np.int32),
        merges.astype(np.int32),
        _rounds(of_round[tile][order], of_round[is_split]),
    )


def _first_seen(position: Array, windows: Array) -> Array:
    """Where the walk of a tile behind sinks begins whose first row is at `position`."""
    window, sinks = windows.T
    first = np.maximum(position - window + 1, np.minimum(sinks, position))
    return np.maximum(first, 0) // SPLIT_UNIT * SPLIT_UNIT


def _split_length(num_tokens: Array, most_splits: Array) -> Array:
    """Tokens of a split, so many that `most_splits` are enough; all, if one is enough."""
    most_splits = np.where(num_tokens < SPLIT_FROM, 1, np.maximum(most_splits, 1))
    length = -(-num_tokens // most_splits)
    return np.maximum(-(-length // SPLIT_UNIT) * SPLIT_UNIT, SPLIT_TOKENS)


def _places(sizes: Array, capacity: int) -> tuple[Array, Array]:
    """Where each of `sizes` begins, one after another, and its round; no size is over capacity."""
    assert sizes.max(initial=0) <= capacity
    ends = np.cumsum(sizes)
    begins, rounds = ends - sizes, np.zeros_like(ends)
    first = number = 0
    while first < len(sizes):
        limit = begins[first] + capacity
        next_first = int(np.searchsorted(ends, limit, side="right"))
        begins[first:next_first] -= begins[first]
        rounds[first:next_first] = number
        first, number = next_first, number + 1
    return begins, rounds


def _rounds(tiles: Array, merges: Array) -> tuple[Round, ...]:
    """From the round of each tile and of each merge, both ascending."""
    numbers = np.arange(tiles[-1] + 2) if len(tiles) else np.zeros(1, np.int64)
    tile_edges, merge_edges = np.searchsorted(tiles, numbers), np.searchsorted(merges, numbers)
    edges = zip(tile_edges, np.diff(tile_edges), merge_edges, np.diff(merge_edges), strict=False)
    return tuple(Round(*(int(edge) for edge in each)) for each in edges)
