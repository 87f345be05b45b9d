"""How the rows of a batch are attended: prepared once per step and used by every layer.

A sequence's rows are cut into tiles of a few tokens; a thread works on one tile at a time. When
there is a single tile, as in decoding, its context is cut into splits instead, so that a sequence
alone keeps every core busy, and the splits' parts are merged afterwards:

    5 tokens, short context      [tile 0: splits 0, 1, 2]
    1 token, long context        [tile 0: split 0] [tile 0: split 1] [tile 0: split 2]   merge
    500 tokens                   [tile 0: all] [tile 1: all] [tile 2: all] …

Tiles of many rows are worked on one KV head at a time. Which of these is done changes nothing in
the results.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pagoda.execution.batch import Batch
from pagoda.kernels.cpu.attention import AttentionPlan, split_tokens, tile_tokens
from pagoda.kernels.cpu.heads import HeadShape

_FEW_ROWS = 16
"""Rows of a KV head that are worked on for all heads at once."""


def plan_attention(batch: Batch, shape: HeadShape) -> AttentionPlan:
    """Cut the rows into tiles, and the context of lone tiles into splits, for heads of a shape."""
    split_size, tile_size = int(split_tokens(shape.block_size)), tile_tokens(shape.group_size)
    starts = batch.query_starts.astype(np.int64)
    num_rows = np.diff(starts)
    num_splits = -(-batch.context_lens.astype(np.int64) // split_size)
    divided = np.flatnonzero((num_rows > 0) & (num_rows <= tile_size) & (num_splits > 1))
    whole = np.flatnonzero((num_rows > tile_size) | ((num_rows > 0) & (num_splits == 1)))

    sequence, split = _repeat(divided, num_splits[divided])
    none = np.zeros_like(sequence)
    parts = np.stack(
        (sequence, starts[sequence], num_rows[sequence], split, split + 1,
         none, none + shape.num_kv_heads), axis=1,
    )  # fmt: skip
    part_ends = np.cumsum(num_splits[divided])
    merges = np.stack(
        (starts[divided], num_rows[divided], part_ends - num_splits[divided], part_ends), axis=1
    )
    tiles = _tiles(batch, whole, starts, num_rows, split_size, tile_size)
    work = np.concatenate((parts, _by_head(tiles, shape, len(num_rows))))
    rows = work[:, 2] * (work[:, 6] - work[:, 5]) * shape.group_size
    part_rows = int(rows[: len(parts)].max(initial=0))
    return AttentionPlan(
        block_tables=batch.block_tables,
        positions=batch.positions,
        work=work,
        merges=merges,
        most_rows=int(rows.max(initial=0)),
        parts=np.empty((len(parts), part_rows * (shape.head_dim + 2)), np.float32),
    )


def _tiles(
    batch: Batch, sequences: NDArray[np.int64], starts: NDArray[np.int64],
    num_rows: NDArray[np.int64], split_size: int, tile_size: int,
) -> NDArray[np.int64]:  # fmt: skip
    """[tiles, 5]: sequence, first row, number of rows, first split, end of splits."""
    sequence, tile = _repeat(sequences, -(-num_rows[sequences] // tile_size))
    first = starts[sequence] + tile * tile_size
    size = np.minimum(tile_size, starts[sequence + 1] - first)
    last_position = batch.positions[first + size - 1].astype(np.int64)
    ends = last_position // split_size + 1
    tiles = np.stack((sequence, first, size, np.zeros_like(ends), ends), axis=1)
    # The longest first, so that no thread is left with a long one at the end.
    return tiles[np.argsort(-size * last_position, kind="stable")]


def _by_head(tiles: NDArray[np.int64], shape: HeadShape, num_sequences: int) -> NDArray[np.int64]:
    """Each tile with its KV heads, first and end: all of them, or a tile for each."""
    heads = shape.num_kv_heads
    is_small = (tiles[:, 2] * shape.group_size <= _FEW_ROWS) & (num_sequences > 1)
    tile, head = _repeat(np.arange(len(tiles)), np.where(is_small, 1, heads))
    end = np.where(is_small[tile], heads, head + 1)
    return np.concatenate((tiles[tile], head[:, None], end[:, None]), axis=1)


def _repeat(
    ids: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each id `counts` times, and beside it 0, 1, … counts - 1."""
    starts = np.cumsum(counts) - counts
    return np.repeat(ids, counts), np.arange(counts.sum()) - np.repeat(starts, counts)
