"""Attention over a paged cache, for any run of rows: one new token of a sequence or thousands.

The context of a row is cut into splits of whole blocks, fixed by position. In each split, in order:

    scores = q · K      highest = max(scores)      p = 2 ** (scores - highest)      mass = Σ p
    piece = p · V

and the pieces are merged in the order of the splits. Every sum has one order, fixed by positions
alone. So a row's result does not depend on the other rows of the batch, on how a prompt was cut
into chunks, on where its blocks lie or on the number of threads; not in a single bit.

Queries and p are rounded to the dtype of the cache before they meet K and V; all else is float32.
Few rows are worked on for all heads at once, because K of all heads lie side by side in a block,
and memory is fastest when it is read in long runs; many rows one head at a time, so that they stay
in cache. Rows of queries, scores and sums are ordered by KV head first, then by token, then by
query head within its group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.fingerprint import FINGERPRINT
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.number import exp2, fma, load, store
from pagoda.kernels.cpu.product import HeadRoutines
from pagoda.kernels.cpu.routine import address_of, call
from pagoda.kernels.cpu.softmax import LOWEST, soften
from pagoda.kernels.cpu.team import claim, finish, phases
from pagoda.kernels.cpu.vector import LANES

_SPLIT_TOKENS = 256
_TILE_ROWS = 48

Span = tuple[int, int, int]
"""Tokens of one split: where the split starts, the first token that counts, the end of those."""

Heads = tuple[int, int, int]
"""The first KV head to work on, the end of those, and how many there are in all."""


class AttentionPlan(NamedTuple):
    """The attention of one step, the same for all layers with heads of one shape."""

    block_tables: Array
    """[sequences, blocks] int32"""
    positions: Array
    """[rows] int32"""
    work: Array
    """[items, 7] int64: sequence, first row, number of rows, first split, end of splits, first KV
    head, end of KV heads. The first `len(parts)` items only leave their state, which `merges` take
    up; the others finish their rows."""
    merges: Array
    """[merged, 4] int64: first row, number of rows, first part, end of parts."""
    parts: Array
    """[num_parts, most rows of a part * num_heads, head_dim + 2] float32, written."""


@njit(error_model="numpy")
def split_tokens(block_size: int) -> int:
    """Tokens of context in a split: whole blocks, near 256 tokens."""
    return block_size * -(-_SPLIT_TOKENS // block_size)


def tile_tokens(group_size: int) -> int:
    """Tokens of a tile: enough rows to keep the multipliers busy, few enough to stay in cache."""
    return max(1, _TILE_ROWS // group_size)


@njit(error_model="numpy")
def _merge(state: Array, piece: Array, highest: np.float32, mass: np.float32) -> None:
    """Add a split's piece of a row to the row's state: its sums, then their highest, their mass."""
    end = piece.shape[0]
    together = highest if highest > state[end] else state[end]
    old = exp2(state[end] - together)
    new = exp2(highest - together)
    state[end] = together
    state[end + 1] = fma(state[end + 1], old, mass * new)
    for d in range(end):
        state[d] = fma(state[d], old, piece[d] * new)


@njit(error_model="numpy")
def _clear(state: Array, head_dim: int) -> None:
    state[:] = np.float32(0.0)
    for row in range(state.shape[0]):
        state[row, head_dim] = LOWEST


@njit(error_model="numpy")
def _load_queries(query: Array, queries: Array, heads: Heads) -> None:
    """The queries of a few tokens and heads in the cache's dtype, in the order of rows."""
    first_head, end_head, _ = heads
    num_tokens, head_dim = queries.shape[0], query.shape[1]
    group_size = query.shape[0] // ((end_head - first_head) * num_tokens)
    row = 0
    for head in range(first_head, end_head):
        for token in range(num_tokens):
            for g in range(group_size):
                start = (head * group_size + g) * head_dim
                source, target = queries[token, start : start + head_dim], query[row]
                for d in range(head_dim):
                    store(target, d, load(source, d))
                row += 1


@njit(error_model="numpy")
def _finish(out: Array, state: Array, first_head: int, end_head: int) -> None:
    """Divide each row's sums by its mass, into the columns of out of those KV heads."""
    num_tokens, head_dim = out.shape[0], state.shape[1] - 2
    group_size = state.shape[0] // ((end_head - first_head) * num_tokens)
    row = 0
    for head in range(first_head, end_head):
        for token in range(num_tokens):
            for g in range(group_size):
                start = (head * group_size + g) * head_dim
                target = out[token, start : start + head_dim]
                sums = state[row]
                inverse = np.float32(1.0) / sums[head_dim + 1]
                for d in range(head_dim):
                    store(target, d, sums[d] * inverse)
                row += 1


@njit(error_model="numpy")
def _score(
    scores: Array, query: Array, blocks: int, like: Array, table: Array, span: Span,
    heads: Heads, shape: HeadShape, routines: HeadRoutines,
) -> None:  # fmt: skip
    """scores[row, token - origin] = q · k for all tokens of the blocks that hold the span."""
    origin, begin, end = span
    first_head, end_head, num_kv_heads = heads
    block_size = shape.block_size
    head_bytes = shape.head_dim * block_size * like.itemsize
    row_bytes, score_bytes = shape.head_dim * like.itemsize, scores.shape[1] * 4
    rows = query.shape[0] // (end_head - first_head)
    tiles = (rows + routines.score_rows - 1) // routines.score_rows
    first, last = begin // block_size, (end + block_size - 1) // block_size
    keys = blocks
    for block in range(first, last, routines.score_blocks):
        # After the last K comes the first V.
        following, ahead = block + routines.score_blocks, keys
        if following >= last:
            following, ahead = first, keys + num_kv_heads * head_bytes
        column = block * block_size - origin
        for head in range(first_head, end_head):
            start = (head - first_head) * rows
            for tile in range(tiles):
                row, end_row = start + rows * tile // tiles, start + rows * (tile + 1) // tiles
                call(
                    routines.score,
                    (address_of(scores) + row * score_bytes + column * 4, score_bytes // 4,
                     address_of(query) + row * row_bytes, row_bytes // 4,
                     keys + head * head_bytes, ahead + head * head_bytes,
                     2 * num_kv_heads * head_bytes, address_of(table), block, following, last,
                     end_row - row),
                )  # fmt: skip


@njit(error_model="numpy")
def _weigh(
    piece: Array, weights: Array, blocks: int, like: Array, table: Array, span: Span,
    heads: Heads, shape: HeadShape, routines: HeadRoutines,
) -> None:  # fmt: skip
    """piece[row] = Σ weights[row, token - origin] · v over the span's tokens, and no others."""
    origin, begin, end = span
    first_head, end_head, num_kv_heads = heads
    head_bytes = shape.head_dim * shape.block_size * like.itemsize
    row_bytes, weight_bytes = shape.head_dim * 4, weights.shape[1] * weights.itemsize
    rows = piece.shape[0] // (end_head - first_head)
    tiles = (rows + routines.weigh_rows - 1) // routines.weigh_rows
    values = blocks + num_kv_heads * head_bytes
    for head in range(first_head, end_head):
        start = (head - first_head) * rows
        for tile in range(tiles):
            row, end_row = start + rows * tile // tiles, start + rows * (tile + 1) // tiles
            call(
                routines.weigh,
                (address_of(piece) + row * row_bytes, shape.head_dim,
                 address_of(weights) + row * weight_bytes, weight_bytes // 4,
                 values + head * head_bytes, 2 * num_kv_heads * head_bytes, address_of(table),
                 origin, begin, end, end_row - row),
            )  # fmt: skip


@njit(error_model="numpy")
def _merge_parts(out: Array, parts: Array, head: int, group_size: int) -> None:
    """Merge one KV head's rows of a sequence's parts, [parts, all rows, head_dim + 2], into out."""
    rows = out.shape[0] * group_size
    head_dim = parts.shape[2] - 2
    state = np.empty((rows, head_dim + 2), np.float32)
    _clear(state, head_dim)
    for part in range(parts.shape[0]):
        for row in range(rows):
            piece = parts[part, head * rows + row]
            _merge(state[row], piece[:head_dim], piece[head_dim], piece[head_dim + 1])
    _finish(out, state, head, head + 1)


@njit(error_model="numpy")
def _attend_item(
    item: int, out: Array, queries: Array, blocks: int, like: Array, plan: AttentionPlan,
    shape: HeadShape, routines: HeadRoutines, scale: np.float32, window: int,
) -> None:  # fmt: skip
    """Do one item of the plan's work."""
    sequence, first_row, num_rows = plan.work[item, 0], plan.work[item, 1], plan.work[item, 2]
    heads = (plan.work[item, 5], plan.work[item, 6], shape.num_kv_heads)
    end_row = first_row + num_rows
    rows = (heads[1] - heads[0]) * num_rows * shape.group_size
    split_size = split_tokens(shape.block_size)
    width = -(-(split_size + routines.score_blocks * shape.block_size) // LANES) * LANES
    query = np.empty((rows, shape.head_dim), like.dtype)
    scores = np.empty((rows, width), np.float32)
    weights = np.empty((rows, width), like.dtype)
    piece = np.empty((rows, shape.head_dim), np.float32)
    marks = np.empty((rows, 2), np.float32)
    _load_queries(query, queries[first_row:end_row], heads)
    is_part = item < plan.parts.shape[0]
    state = plan.parts[item, :rows] if is_part else np.empty((rows, shape.head_dim + 2), np.float32)
    _clear(state, shape.head_dim)
    positions, table = plan.positions[first_row:end_row], plan.block_tables[sequence]
    first_seen = max(positions[0] - window + 1, 0)
    last_seen = positions[num_rows - 1] + 1
    for split in range(max(plan.work[item, 3], first_seen // split_size), plan.work[item, 4]):
        origin = split * split_size
        begin, end = max(first_seen, origin), min(last_seen, origin + split_size)
        span = (origin, begin, end)
        used = (end - origin + LANES - 1) // LANES * LANES
        _score(scores, query, blocks, like, table, span, heads, shape, routines)
        for row in range(rows):
            position = positions[row // shape.group_size % num_rows]
            row_begin = max(position - window + 1, begin) - origin
            row_end = min(position + 1, end) - origin
            marks[row, 0], marks[row, 1] = soften(
                scores[row, :used], weights[row, :used], row_begin, row_end, scale
            )
        _weigh(piece, weights, blocks, like, table, span, heads, shape, routines)
        for row in range(rows):
            _merge(state[row], piece[row], marks[row, 0], marks[row, 1])
    if not is_part:
        _finish(out[first_row:end_row], state, heads[0], heads[1])


@njit(error_model="numpy")
def attend(
    working: Array, merging: Array, out: Array, queries: Array, blocks: int, like: Array,
    plan: AttentionPlan, shape: HeadShape, routines: HeadRoutines, scale: np.float32, window: int,
) -> None:  # fmt: skip
    """A thread's share of the attention of one layer.

    working, merging: phases that nobody has begun, the same for all threads.
    out: [rows, num_heads * head_dim], written; queries: [rows, at least that], heads first.
    blocks: address of the layer's, each [2 * num_kv_heads * head_dim * block_size], laid out as
    `storage` says; like: an array of their dtype.
    scale: float32, times log2(e), multiplies q · k. window: tokens that a row sees, its own
    included. out, queries and blocks are float32 or bfloat16 bits.
    """
    mine = 0
    item = claim(working)
    while item < plan.work.shape[0]:
        _attend_item(item, out, queries, blocks, like, plan, shape, routines, scale, window)
        mine += 1
        item = claim(working)
    finish(working, mine, plan.work.shape[0])
    total = plan.merges.shape[0] * shape.num_kv_heads
    if total == 0:
        return
    mine = 0
    item = claim(merging)
    while item < total:
        merge = item // shape.num_kv_heads
        first_row = plan.merges[merge, 0]
        end_row = first_row + plan.merges[merge, 1]
        pieces = plan.parts[plan.merges[merge, 2] : plan.merges[merge, 3]]
        head = item - merge * shape.num_kv_heads
        _merge_parts(out[first_row:end_row], pieces, head, shape.group_size)
        mine += 1
        item = claim(merging)
    finish(merging, mine, total)


def _attention_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def paged_attention(
        out: Array, queries: Array, blocks: Array, plan: AttentionPlan, shape: HeadShape,
        routines: HeadRoutines, scale: np.float32, window: int, num_threads: int,
    ) -> None:  # fmt: skip
        """`attend` for one layer alone, by all threads.

        blocks: [num_blocks, 2 * num_kv_heads * head_dim * block_size].
        """
        _ = fingerprint
        counters = phases(2)
        place = address_of(blocks)
        for _ in prange(num_threads):
            attend(
                counters[0],
                counters[1],
                out,
                queries,
                place,
                blocks,
                plan,
                shape,
                routines,
                scale,
                window,
            )

    return paged_attention


paged_attention = _attention_kernel(FINGERPRINT)
