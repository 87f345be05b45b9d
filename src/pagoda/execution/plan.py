"""How the rows of a batch are attended: prepared once per step and used by every layer.

A sequence's rows are cut into tiles of a few tokens; a thread works on one tile at a time. When
there is a single tile, as in decoding, its context is cut into splits instead, so that a sequence
alone keeps every core busy, and the splits' parts are merged afterwards:

    5 tokens, short context      [tile 0: splits 0, 1, 2]
    1 token, long context        [tile 0: split 0] [tile 0: split 1] [tile 0: split 2]   merge
    500 tokens                   [tile 0: all] [tile 1: all] [tile 2: all] …

Which of the two is done changes nothing in the results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagoda.execution.batch import Batch


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The work of one step for heads of one shape, as the attention kernel takes it."""

    work: NDArray[np.int64]
    """[num_items, 5]: sequence, first row, number of rows, first split, end of splits.

    The first `num_parts` items are parts, which are merged; the others finish their rows alone.
    """
    merges: NDArray[np.int64]
    """[num_merged, 4]: first row, number of rows, first part, end of parts."""
    num_parts: int
    part_rows: int
    """Most rows of a part."""


def plan_attention(batch: Batch, split_tokens: int, tile_tokens: int) -> AttentionPlan:
    """Cut the rows into tiles of up to `tile_tokens`, and the context of lone tiles into splits."""
    starts = batch.query_starts.astype(np.int64)
    num_rows = np.diff(starts)
    num_splits = -(-batch.context_lens.astype(np.int64) // split_tokens)
    divided = np.flatnonzero((num_rows > 0) & (num_rows <= tile_tokens) & (num_splits > 1))
    whole = np.flatnonzero((num_rows > tile_tokens) | ((num_rows > 0) & (num_splits == 1)))

    sequence, split = _repeat(divided, num_splits[divided])
    parts = np.stack((sequence, starts[sequence], num_rows[sequence], split, split + 1), axis=1)
    part_ends = np.cumsum(num_splits[divided])
    merges = np.stack(
        (starts[divided], num_rows[divided], part_ends - num_splits[divided], part_ends), axis=1
    )
    sequence, tile = _repeat(whole, -(-num_rows[whole] // tile_tokens))
    first = starts[sequence] + tile * tile_tokens
    size = np.minimum(tile_tokens, starts[sequence + 1] - first)
    last_position = batch.positions[first + size - 1].astype(np.int64)
    ends = last_position // split_tokens + 1
    tiles = np.stack((sequence, first, size, np.zeros_like(ends), ends), axis=1)
    # The longest first, so that no thread is left with a long one at the end.
    tiles = tiles[np.argsort(-size * last_position, kind="stable")]
    part_rows = int(num_rows[divided].max(initial=0))
    return AttentionPlan(np.concatenate((parts, tiles)), merges, len(parts), part_rows)


def _repeat(
    ids: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each id `counts` times, and beside it 0, 1, … counts - 1."""
    starts = np.cumsum(counts) - counts
    return np.repeat(ids, counts), np.arange(counts.sum()) - np.repeat(starts, counts)
