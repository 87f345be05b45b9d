"""How the rows of a batch are attended: prepared once per step and used by every layer.

A sequence's rows are cut into tiles of a few tokens; a thread works on one tile at a time. When
there is a single tile, as in decoding, its context is cut into splits instead, so that a sequence
alone keeps every core busy, and the splits' parts are merged afterwards. Where several sequences
have the same blocks in a split, as behind a common prefix, they take it together:

    5 tokens, short context      [tile 0: splits 0, 1, 2]
    1 token, long context        [tile 0: split 0] [tile 0: split 1] [tile 0: split 2]   merge
    1 token each of a and b      [a and b: split 0] [a: split 1] [b: split 1]            merge
    500 tokens                   [tile 0: all] [tile 1: all] [tile 2: all] …

Tiles of many rows are worked on one KV head at a time. Which of these is done changes nothing in
the results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pagoda.execution.batch import Batch
from pagoda.kernels.cpu.attention import tile_tokens
from pagoda.kernels.cpu.attention_scratch import split_tokens
from pagoda.kernels.cpu.attention_tiling import AttentionTiling
from pagoda.kernels.cpu.heads import HeadShape

_FEW_ROWS = 16
"""Rows of a KV head that are worked on for all heads at once."""

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences whose rows all come after a split, and that have the same blocks in it."""

    split: int
    sequences: Integers


class AttentionTiler:
    """Plans the steps of one engine for heads of one shape.

    While as many sequences with as many splits take one token each, step after step, the last
    tiling still holds. That blocks are newly shared is noticed with the next new one.
    """

    def __init__(self, shape: HeadShape) -> None:
        self._shape = shape
        self._split_tokens = int(split_tokens(shape.block_size))
        self._query_starts: NDArray[np.int32] = np.empty(0, np.int32)
        self._num_splits: Integers = np.empty(0, np.int64)
        self._groups: list[Group] = []
        self._tiling: AttentionTiling | None = None
        self._takes_one_each = False

    def tile(self, batch: Batch) -> AttentionTiling:
        """How to attend this batch; to be carried out before the next one is tiled."""
        num_splits = -(-batch.context_lens.astype(np.int64) // self._split_tokens)
        if self._tiling is not None and self._still_holds(batch, num_splits):
            self._tiling = replace(
                self._tiling, block_tables=batch.block_tables, positions=batch.positions
            )
            return self._tiling
        tile_size = tile_tokens(self._shape.group_size)
        divided = _divided(batch, num_splits, tile_size)
        self._groups = _groups(batch, divided, self._shape.block_size, tile_size)
        self._query_starts, self._num_splits = batch.query_starts, num_splits
        self._takes_one_each = bool((np.diff(batch.query_starts) == 1).all())
        self._tiling = _tiling(batch, self._shape, num_splits, divided, self._groups)
        return self._tiling

    def _still_holds(self, batch: Batch, num_splits: Integers) -> bool:
        return (
            self._takes_one_each
            and np.array_equal(batch.query_starts, self._query_starts)
            and np.array_equal(num_splits, self._num_splits)
            and all(self._is_shared(batch, group) for group in self._groups)
        )

    def _is_shared(self, batch: Batch, group: Group) -> bool:
        """Rows may have changed hands: do those of a group still have the same blocks?

        If so each sees the whole of the split: what it writes to is a block of its own.
        """
        per_split = self._split_tokens // self._shape.block_size
        blocks = batch.block_tables[
            group.sequences, group.split * per_split : (group.split + 1) * per_split
        ]
        return bool((blocks == blocks[0]).all())


def tile_attention(batch: Batch, shape: HeadShape) -> AttentionTiling:
    """Cut the rows into tiles, and the context of lone tiles into splits, for heads of a shape."""
    return AttentionTiler(shape).tile(batch)


def _divided(batch: Batch, num_splits: Integers, tile_size: int) -> Integers:
    """Sequences with a single tile and more than one split."""
    num_rows = np.diff(batch.query_starts)
    return np.flatnonzero((num_rows > 0) & (num_rows <= tile_size) & (num_splits > 1))


def _tiling(
    batch: Batch, shape: HeadShape, num_splits: Integers, divided: Integers, groups: list[Group]
) -> AttentionTiling:
    split_size, tile_size = int(split_tokens(shape.block_size)), tile_tokens(shape.group_size)
    starts_of_rows = batch.query_starts.astype(np.int64)
    num_rows = starts_of_rows[1:] - starts_of_rows[:-1]
    whole = np.flatnonzero((num_rows > tile_size) | ((num_rows > 0) & (num_splits == 1)))
    tokens, parts = _parts(batch, divided, num_rows, num_splits, groups)
    parts = _by_head(parts, shape, is_alone=False)
    tiles = _tiles(batch, whole, num_rows, split_size, tile_size)
    tiles = _by_head(tiles, shape, is_alone=len(num_rows) == 1)
    work = np.concatenate((parts, tiles))
    starts, merges = _merges(batch, divided, num_rows, num_splits)
    rows = work[:, 2] * (work[:, 6] - work[:, 5]) * shape.group_size
    part_width = shape.num_kv_heads * shape.group_size * (shape.head_dim + 2)
    return AttentionTiling(
        block_tables=batch.block_tables,
        positions=batch.positions,
        tokens=tokens,
        work=work,
        num_parts=len(parts),
        starts=starts,
        merges=merges,
        parts=np.empty((int(merges[:, 2].sum()), part_width), np.float32),
        most_rows=int(rows.max(initial=0)),
    )


def _tiles(
    batch: Batch, sequences: Integers, num_rows: Integers, split_size: int, tile_size: int
) -> Integers:
    """[tiles, 5]: sequence, first row, number of rows, first split, end of splits."""
    sequence, tile = _repeat(sequences, -(-num_rows[sequences] // tile_size))
    first = batch.query_starts[sequence].astype(np.int64) + tile * tile_size
    size = np.minimum(tile_size, batch.query_starts[sequence + 1] - first)
    last_position = batch.positions[first + size - 1].astype(np.int64)
    ends = last_position // split_size + 1
    tiles = np.stack((sequence, first, size, np.zeros_like(ends), ends), axis=1)
    # The longest first, so that no thread is left with a long one at the end.
    return tiles[np.argsort(-size * last_position, kind="stable")]


def _groups(batch: Batch, sequences: Integers, block_size: int, tile_size: int) -> list[Group]:
    """What can be taken together, from the first split on; no group has more than a tile's rows."""
    if len(sequences) < 2:
        return []
    size = int(split_tokens(block_size))
    per_split = size // block_size
    first_positions = batch.positions[np.minimum(batch.query_starts[:-1], batch.num_tokens - 1)]
    groups: list[Group] = []
    split = 0
    while True:
        sequences = sequences[first_positions[sequences] >= (split + 1) * size - 1]
        if len(sequences) < 2:
            return groups
        blocks = batch.block_tables[sequences, split * per_split : (split + 1) * per_split]
        _, number, counts = np.unique(blocks[:, 0], return_inverse=True, return_counts=True)
        for shared in np.flatnonzero(counts > 1):
            members = np.flatnonzero(number == shared)
            members = members[(blocks[members] == blocks[members[0]]).all(1)]
            groups += _cut(batch, split, sequences[members], tile_size)
        sequences = sequences[counts[number] > 1]
        split += 1


def _cut(batch: Batch, split: int, members: Integers, tile_size: int) -> list[Group]:
    """Groups of up to a tile's rows; a member that is left over is none."""
    num_rows = (batch.query_starts[members + 1] - batch.query_starts[members]).tolist()
    groups: list[list[int]] = []
    left = 0
    for member, rows in zip(members.tolist(), num_rows, strict=True):
        if rows > left:
            groups.append([])
            left = tile_size
        groups[-1].append(member)
        left -= rows
    return [Group(split, np.array(group)) for group in groups if len(group) > 1]


def _parts(
    batch: Batch, divided: Integers, num_rows: Integers, num_splits: Integers, groups: list[Group]
) -> tuple[Integers, Integers]:
    """Rows of the step, all in order and then each group's anew; and [parts, 5], as tiles.

    A part is one split of one sequence, or of a group.
    """
    sequence, split = _repeat(divided, num_splits[divided])
    grouped = np.zeros((len(num_rows), int(num_splits.max(initial=0))), bool)
    runs = [np.arange(batch.num_tokens)]
    shared = np.empty((len(groups), 5), np.int64)
    end = batch.num_tokens
    for number, group in enumerate(groups):
        grouped[group.sequences, group.split] = True
        members, offset = _repeat(group.sequences, num_rows[group.sequences])
        runs.append(batch.query_starts[members] + offset)
        shared[number] = group.sequences[0], end, len(members), group.split, group.split + 1
        end += len(members)
    is_lone = ~grouped[sequence, split]
    sequence, split = sequence[is_lone], split[is_lone]
    first = batch.query_starts[sequence].astype(np.int64)
    lone = np.stack((sequence, first, num_rows[sequence], split, split + 1), axis=1)
    return np.concatenate(runs), np.concatenate((shared, lone))


def _merges(
    batch: Batch, divided: Integers, num_rows: Integers, num_splits: Integers
) -> tuple[Integers, Integers]:
    """For every row its first part, and [rows of divided sequences, 3]: see `AttentionTiling`."""
    sequence, offset = _repeat(divided, num_rows[divided])
    rows = batch.query_starts[sequence].astype(np.int64) + offset
    counts = num_splits[sequence]
    first = np.cumsum(counts) - counts
    starts = np.zeros(batch.num_tokens, np.int64)
    starts[rows] = first
    return starts, np.stack((rows, first, counts), axis=1)


def _by_head(tiles: Integers, shape: HeadShape, is_alone: bool) -> Integers:
    """Each tile with its KV heads, first and end: all of them, or a tile for each."""
    heads = shape.num_kv_heads
    is_small = (tiles[:, 2] * shape.group_size <= _FEW_ROWS) & (not is_alone)
    tile, head = _repeat(np.arange(len(tiles)), np.where(is_small, 1, heads))
    end = np.where(is_small[tile], heads, head + 1)
    return np.concatenate((tiles[tile], head[:, None], end[:, None]), axis=1)


def _repeat(ids: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Each id `counts` times, and beside it 0, 1, … counts - 1."""
    starts = np.cumsum(counts) - counts
    return np.repeat(ids, counts), np.arange(counts.sum()) - np.repeat(starts, counts)
