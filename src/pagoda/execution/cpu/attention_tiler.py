"""How the rows of a batch are attended: prepared once per step and used by every layer.

A sequence's rows are cut into tiles of a few tokens; a thread works on one tile at a time. When
there is a single tile, as in decoding, its context is cut into splits instead, so that a sequence
alone keeps every core busy, and the splits' parts are merged afterwards. Where several sequences
have the same blocks in a split, as behind a common prefix, they take it together:

    5 tokens, short context      [tile 0: splits 0, 1, 2]
    1 token, long context        [tile 0: split 0] [tile 0: split 1] [tile 0: split 2]   merge
    1 token each of a and b      [a and b: split 0] [a: split 1] [b: split 1]            merge
    500 tokens                   [tile 0: all] [tile 1: all] [tile 2: all] …

Splits that lie before a sequence's window are left out; its sinks come with the first of those that
are not. Tiles of many rows are worked on one KV head at a time. Where splits are decoded before
they are met, which each tile does anew, tiles are larger as long as there are enough for all
threads. Which of these is done changes nothing in the results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pagoda.execution.batch import Batch, GroupPages
from pagoda.kernels.cpu.attention import strip_tokens
from pagoda.kernels.cpu.attention_scratch import split_tokens
from pagoda.kernels.cpu.attention_tiling import AttentionTiling, WorkItem
from pagoda.kernels.cpu.heads import HeadShape

_FEW_ROWS = 16
"""Rows of a KV head that are worked on for all heads at once."""
_MOST_STRIPS = 4
"""Of a tile that decodes."""
_ITEMS_OF_THREAD = 6
"""Tiles of a head that each thread has at least before they are larger: more even than fewer."""

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Company:
    """Sequences whose rows all come after a split, and that have the same blocks in it."""

    split: int
    sequences: Integers


@dataclass(frozen=True, slots=True)
class Splits:
    """Which splits of its context each sequence of a batch sees a part of: first … end - 1."""

    first: Integers
    end: Integers
    has_sinks: NDArray[np.bool_]
    """And whether it sees sinks before them."""

    @classmethod
    def of(cls, batch: Batch, pages: GroupPages, split_size: int) -> Splits:
        """By the sequence's first row of the step, which sees most."""
        window, sinks = pages.windows.T
        end = -(-batch.context_lens.astype(np.int64) // split_size)
        if len(end) == 0 or window.min() >= batch.context_lens.max():
            return cls(np.zeros(len(end), np.int64), end, sinks > 0)
        lowest = batch.positions[np.minimum(batch.query_starts[:-1], batch.num_tokens - 1)]
        first = lowest - window.astype(np.int64) + 1
        seen = np.maximum(first, np.minimum(sinks, lowest))
        return cls(seen // split_size, end, sinks > 0)

    @property
    def count(self) -> Integers:
        """Splits of each sequence."""
        return self.end - self.first

    def same_as(self, other: Splits) -> bool:
        return all(
            np.array_equal(mine, others)
            for mine, others in (
                (self.first, other.first),
                (self.end, other.end),
                (self.has_sinks, other.has_sinks),
            )
        )


class AttentionTiler:
    """Plans the steps of one engine for a group of layers with heads of one shape.

    While as many sequences with as many splits take one token each, step after step, the last
    tiling still holds. That blocks are newly shared is noticed with the next new one.
    """

    def __init__(
        self, shape: HeadShape, group: int = 0, *, decodes: bool = False, num_threads: int = 1
    ) -> None:
        """decodes: keys or values are made plain numbers before many rows meet them."""
        self._shape = shape
        self._group = group
        self._decodes, self._num_threads = decodes, num_threads
        self._split_tokens = split_tokens(shape.block_size)
        self._query_starts: NDArray[np.int32] = np.empty(0, np.int32)
        self._splits: Splits | None = None
        self._companies: list[Company] = []
        self._tiling: AttentionTiling | None = None
        self._takes_one_each = False

    def tile(self, batch: Batch) -> AttentionTiling:
        """How to attend this batch; to be carried out before the next one is tiled."""
        pages = batch.groups[self._group]
        splits = Splits.of(batch, pages, self._split_tokens)
        if self._tiling is None or not self._still_holds(batch, pages, splits):
            tile_size = strip_tokens(self._shape.group_size)
            divided = _divided(batch, splits, tile_size)
            self._companies = _companies(
                batch, pages, splits, divided, self._shape.block_size, tile_size
            )
            self._query_starts, self._splits = batch.query_starts, splits
            self._takes_one_each = bool((np.diff(batch.query_starts) == 1).all())
            self._tiling = _tiling(
                batch, self._group, self._shape, splits, divided, self._companies,
                self._strips(batch, tile_size),
            )  # fmt: skip
            return self._tiling
        self._tiling = replace(
            self._tiling,
            block_tables=pages.block_tables,
            windows=np.ascontiguousarray(pages.windows),
            positions=batch.positions,
            sink_positions=_sink_positions(batch, self._group),
            slot_mapping=pages.slot_mapping,
        )
        return self._tiling

    def _strips(self, batch: Batch, strip_size: int) -> int:
        """Of the largest tiles; strip_size: tokens of each."""
        num_rows = np.diff(batch.query_starts)
        num_rows = num_rows[num_rows > strip_size]
        wanted = _ITEMS_OF_THREAD * self._num_threads
        for strips in range(_MOST_STRIPS if self._decodes else 1, 1, -1):
            num_tiles = int((-(-num_rows // (strips * strip_size))).sum())
            if num_tiles * self._shape.num_kv_heads >= wanted:
                return strips
        return 1

    def _still_holds(self, batch: Batch, pages: GroupPages, splits: Splits) -> bool:
        return (
            self._takes_one_each
            and self._splits is not None
            and np.array_equal(batch.query_starts, self._query_starts)
            and splits.same_as(self._splits)
            and all(self._is_shared(pages, group) for group in self._companies)
        )

    def _is_shared(self, pages: GroupPages, group: Company) -> bool:
        """Rows may have changed hands: do those of a group still have the same blocks?

        If so each sees the whole of the split: what it writes to is a block of its own. Who has the
        same blocks has the same window, by which blocks are found.
        """
        per_split = self._split_tokens // self._shape.block_size
        blocks = pages.block_tables[
            group.sequences, group.split * per_split : (group.split + 1) * per_split
        ]
        return bool((blocks == blocks[0]).all())


def tile_attention(
    batch: Batch, shape: HeadShape, group: int = 0, *, decodes: bool = False, num_threads: int = 1
) -> AttentionTiling:
    """Cut the rows into tiles, and the context of lone tiles into splits, for heads of a shape."""
    return AttentionTiler(shape, group, decodes=decodes, num_threads=num_threads).tile(batch)


def _divided(batch: Batch, splits: Splits, tile_size: int) -> Integers:
    """Sequences with a single tile and more than one split."""
    num_rows = np.diff(batch.query_starts)
    return np.flatnonzero((num_rows > 0) & (num_rows <= tile_size) & (splits.count > 1))


def _sink_positions(batch: Batch, group: int) -> NDArray[np.int32] | None:
    """Where each row stands for its sinks; None where no sequence has any."""
    return batch.sink_positions(group) if batch.groups[group].windows[:, 1].any() else None


def _tiling(
    batch: Batch, group: int, shape: HeadShape, splits: Splits, divided: Integers,
    companies: list[Company], strips: int,
) -> AttentionTiling:  # fmt: skip
    pages = batch.groups[group]
    split_size, strip_size = split_tokens(shape.block_size), strip_tokens(shape.group_size)
    num_rows = np.diff(batch.query_starts).astype(np.int64)
    whole = np.flatnonzero((num_rows > strip_size) | ((num_rows > 0) & (splits.count == 1)))
    tokens, parts = _parts(batch, divided, num_rows, splits, companies)
    tiles = _tiles(batch, splits, whole, num_rows, split_size, strips * strip_size)
    work, num_parts = _by_head(parts, tiles, shape, is_alone=len(num_rows) == 1)
    starts, merges = _merges(batch, divided, num_rows, splits)
    rows = work[:, 2] * (work[:, 6] - work[:, 5]) * shape.group_size
    part_width = shape.num_kv_heads * shape.group_size * (shape.value_dim + 2)
    return AttentionTiling(
        block_tables=pages.block_tables,
        windows=np.ascontiguousarray(pages.windows),
        positions=batch.positions,
        sink_positions=_sink_positions(batch, group),
        slot_mapping=pages.slot_mapping,
        tokens=tokens,
        work=work,
        num_parts=num_parts,
        starts=starts,
        merges=merges,
        parts=np.empty((int(merges[:, 2].sum()), part_width), np.float32),
        most_rows=int(rows.max(initial=0)),
        in_turn=bool((tiles[:, 4] - tiles[:, 3] > 1).any()),
    )


def _tiles(
    batch: Batch, splits: Splits, sequences: Integers, num_rows: Integers, split_size: int,
    tile_size: int,
) -> Integers:  # fmt: skip
    """[tiles, 6]: sequence, first row, number of rows, first split, end of splits, has sinks."""
    sequence, tile = _repeat(sequences, -(-num_rows[sequences] // tile_size))
    first = batch.query_starts[sequence].astype(np.int64) + tile * tile_size
    size = np.minimum(tile_size, batch.query_starts[sequence + 1] - first)
    last_position = batch.positions[first + size - 1].astype(np.int64)
    ends = last_position // split_size + 1
    sinks = splits.has_sinks[sequence]
    tiles = np.array((sequence, first, size, splits.first[sequence], ends, sinks), np.int64).T
    # The longest first, so that no thread is left with a long one at the end.
    return tiles[np.argsort(-size * last_position, kind="stable")]


def _companies(
    batch: Batch, pages: GroupPages, splits: Splits, sequences: Integers, block_size: int,
    tile_size: int,
) -> list[Company]:  # fmt: skip
    """What can be taken together, from the first split on; no group has more than a tile's rows.

    Of sequences behind a window, those whose windows begin in the same split; the split that comes
    with sinks is nobody else's.
    """
    if len(sequences) < 2:
        return []
    companies: list[Company] = []
    begins = splits.first[sequences] * 2 + splits.has_sinks[sequences]
    for begin in np.unique(begins):
        members = sequences[begins == begin]
        first = int(begin // 2 + begin % 2)
        companies += _companies_from(first, batch, pages, members, block_size, tile_size)
    return companies


def _companies_from(
    split: int, batch: Batch, pages: GroupPages, sequences: Integers, block_size: int,
    tile_size: int,
) -> list[Company]:  # fmt: skip
    """`_companies` of sequences that all see the splits from `split` on."""
    size = int(split_tokens(block_size))
    per_split = size // block_size
    first_positions = batch.positions[np.minimum(batch.query_starts[:-1], batch.num_tokens - 1)]
    companies: list[Company] = []
    while True:
        sequences = sequences[first_positions[sequences] >= (split + 1) * size - 1]
        if len(sequences) < 2:
            return companies
        blocks = pages.block_tables[sequences, split * per_split : (split + 1) * per_split]
        _, number, counts = np.unique(blocks[:, -1], return_inverse=True, return_counts=True)
        for shared in np.flatnonzero(counts > 1):
            members = np.flatnonzero(number == shared)
            members = members[(blocks[members] == blocks[members[0]]).all(1)]
            companies += _cut(batch, split, sequences[members], tile_size)
        sequences = sequences[counts[number] > 1]
        split += 1


def _cut(batch: Batch, split: int, members: Integers, tile_size: int) -> list[Company]:
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
    return [Company(split, np.array(group)) for group in groups if len(group) > 1]


def _parts(
    batch: Batch, divided: Integers, num_rows: Integers, splits: Splits, companies: list[Company]
) -> tuple[Integers, Integers]:
    """Rows of the step, all in order and then each group's anew; and [parts, 6], as tiles.

    A part is one split of one sequence, or of a group.
    """
    rows = np.arange(batch.num_tokens)
    if len(divided) == 0:
        return rows, np.empty((0, 6), np.int64)
    sequence, split = _repeat(divided, splits.count[divided])
    is_first = split == 0
    split = split + splits.first[sequence]
    grouped = np.zeros((len(num_rows), int(splits.end.max(initial=0))), bool)
    runs = [rows]
    shared = np.empty((len(companies), 6), np.int64)
    end = batch.num_tokens
    for number, company in enumerate(companies):
        grouped[company.sequences, company.split] = True
        members, offset = _repeat(company.sequences, num_rows[company.sequences])
        runs.append(batch.query_starts[members] + offset)
        shared[number] = (
            company.sequences[0],
            end,
            len(members),
            company.split,
            company.split + 1,
            0,
        )
        end += len(members)
    is_lone = ~grouped[sequence, split]
    sequence, split, is_first = sequence[is_lone], split[is_lone], is_first[is_lone]
    first = batch.query_starts[sequence].astype(np.int64)
    sinks = is_first & splits.has_sinks[sequence]
    sizes = num_rows[sequence]
    lone = np.array((sequence, first, sizes, split, split + 1, sinks), np.int64).T
    return np.concatenate(runs), np.concatenate((shared, lone))


def _merges(
    batch: Batch, divided: Integers, num_rows: Integers, splits: Splits
) -> tuple[Integers, Integers]:
    """For every row where its parts begin, were there one of split 0, and [rows of divided
    sequences, 3]: see `AttentionTiling`."""
    starts = np.zeros(batch.num_tokens, np.int64)
    if len(divided) == 0:
        return starts, np.empty((0, 3), np.int64)
    sequence, offset = _repeat(divided, num_rows[divided])
    rows = batch.query_starts[sequence].astype(np.int64) + offset
    counts = splits.count[sequence]
    first = np.cumsum(counts) - counts
    starts[rows] = first - splits.first[sequence]
    return starts, np.array((rows, first, counts)).T.copy()


def _by_head(
    parts: Integers, tiles: Integers, shape: HeadShape, *, is_alone: bool
) -> tuple[Integers, int]:
    """`WorkItem`s, and how many of them are parts: each part or tile with its KV heads, all of
    them, or an item for each. Tiles of a sequence that is alone are for all threads."""
    heads = shape.num_kv_heads
    both = np.concatenate((parts, tiles))
    is_small = both[:, 2] * shape.group_size <= _FEW_ROWS
    if is_alone:
        is_small[len(parts) :] = False
    counts = np.where(is_small, 1, heads)
    own, head = _repeat(np.arange(len(both)), counts)
    work = np.empty((len(own), len(WorkItem._fields)), np.int64)
    work[:, :5], work[:, 7] = both[own, :5], both[own, 5]
    work[:, 5], work[:, 6] = head, np.where(is_small[own], heads, head + 1)
    return work, int(counts[: len(parts)].sum())


def _repeat(ids: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Each id `counts` times, and beside it 0, 1, … counts - 1."""
    starts, repeated = counts.cumsum() - counts, ids.repeat(counts)
    return repeated, np.arange(len(repeated)) - starts.repeat(counts)
