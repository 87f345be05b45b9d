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
from pagoda.kernels.cpu.softmax import LOWEST, WIDTH, soften
from pagoda.kernels.cpu.team import claim, finish, phases

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
    most_rows: int
    """Rows, one for each query head of a token, of the largest item."""
    parts: Array
    """[num_parts, rows of the largest part * (head_dim + 2)] float32, written."""


class Scratch(NamedTuple):
    """A thread's own memory while it attends."""

    query: Array
    """[most rows, head_dim], of the cache's dtype"""
    scores: Array
    """[most rows, tokens of a split and some] float32"""
    weights: Array
    """As scores, of the cache's dtype."""
    state: Array
    """[most rows * (head_dim + 2)] float32"""
    piece: Array
    """As state."""


class State(NamedTuple):
    """What is known of some rows after some splits; float32."""

    sums: Array
    """[rows, head_dim]: Σ p · V"""
    highest: Array
    """[rows]: the score that p is relative to"""
    mass: Array
    """[rows]: Σ p"""


@njit(error_model="numpy")
def split_tokens(block_size: int) -> int:
    """Tokens of context in a split: whole blocks, near 256 tokens."""
    return block_size * -(-_SPLIT_TOKENS // block_size)


def tile_tokens(group_size: int) -> int:
    """Tokens of a tile: enough rows to keep the multipliers busy, few enough to stay in cache."""
    return max(1, _TILE_ROWS // group_size)


@njit(error_model="numpy")
def _merge(state: State, piece: State) -> None:
    """Add a split's piece to the state of the same rows. Changes both."""
    rows, head_dim = state.sums.shape
    for row in range(rows):
        together = max(state.highest[row], piece.highest[row])
        old, new = exp2(state.highest[row] - together), exp2(piece.highest[row] - together)
        state.highest[row] = together
        state.mass[row] = fma(state.mass[row], old, piece.mass[row] * new)
        # From here on these are factors.
        piece.highest[row], piece.mass[row] = old, new
    for row in range(rows):
        old, new = piece.highest[row], piece.mass[row]
        sums, added = state.sums[row], piece.sums[row]
        for d in range(head_dim):
            sums[d] = fma(sums[d], old, added[d] * new)


@njit(error_model="numpy")
def _state_in(room: Array, rows: int, head_dim: int) -> State:
    """The state of some rows, kept in a row of numbers: first the sums, then the two others."""
    end = rows * head_dim
    return State(
        room[:end].reshape(rows, head_dim),
        room[end : end + rows],
        room[end + rows : end + 2 * rows],
    )


@njit(error_model="numpy")
def new_scratch(
    plan: AttentionPlan, shape: HeadShape, routines: HeadRoutines, like: Array
) -> Scratch:
    """Memory for one thread that carries out a plan."""
    rows, tokens = plan.most_rows, split_tokens(shape.block_size)
    width = -(-(tokens + routines.score_blocks * shape.block_size) // WIDTH) * WIDTH
    return Scratch(
        np.empty((rows, shape.head_dim), like.dtype),
        np.empty((rows, width), np.float32),
        np.empty((rows, width), like.dtype),
        np.empty(rows * (shape.head_dim + 2), np.float32),
        np.empty(rows * (shape.head_dim + 2), np.float32),
    )


@njit(error_model="numpy")
def _clear(state: State) -> None:
    state.sums[:] = np.float32(0.0)
    state.highest[:] = LOWEST
    state.mass[:] = np.float32(0.0)


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
def _finish(out: Array, state: State, first_head: int, end_head: int) -> None:
    """Divide each row's sums by its mass, into the columns of out of those KV heads."""
    num_tokens, head_dim = out.shape[0], state.sums.shape[1]
    group_size = state.sums.shape[0] // ((end_head - first_head) * num_tokens)
    row = 0
    for head in range(first_head, end_head):
        for token in range(num_tokens):
            for g in range(group_size):
                start = (head * group_size + g) * head_dim
                target, sums = out[token, start : start + head_dim], state.sums[row]
                inverse = np.float32(1.0) / state.mass[row]
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
def _soften_rows(
    scores: Array, weights: Array, piece: State, positions: Array, span: Span, window: int,
    group_size: int, scale: np.float32,
) -> None:  # fmt: skip
    """From the scores of all rows to their weights, and what `piece` keeps beside its sums."""
    origin, begin, end = span
    used = -(-(end - origin) // WIDTH) * WIDTH
    marks = np.empty(2, np.float32)
    row = 0
    while row < scores.shape[0]:
        for position in positions:
            first = max(position - window + 1, begin) - origin
            last = min(position + 1, end) - origin
            for _ in range(group_size):
                soften(scores[row, :used], weights[row, :used], first, last, scale, marks)
                piece.highest[row], piece.mass[row] = marks[0], marks[1]
                row += 1


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
def _merge_parts(out: Array, parts: Array, shape: HeadShape, head: int, scratch: Scratch) -> None:
    """Merge one KV head's rows of a sequence's parts into out: [rows, num_heads * head_dim]."""
    rows = out.shape[0] * shape.group_size
    first, end = head * rows, (head + 1) * rows
    state = _state_in(scratch.state, rows, shape.head_dim)
    piece = _state_in(scratch.piece, rows, shape.head_dim)
    _clear(state)
    for part in range(parts.shape[0]):
        found = _state_in(parts[part], rows * shape.num_kv_heads, shape.head_dim)
        piece.sums[:] = found.sums[first:end]
        piece.highest[:] = found.highest[first:end]
        piece.mass[:] = found.mass[first:end]
        _merge(state, piece)
    _finish(out, state, head, head + 1)


@njit(error_model="numpy")
def _attend_item(
    item: int, out: Array, queries: Array, blocks: int, like: Array, plan: AttentionPlan,
    shape: HeadShape, routines: HeadRoutines, scale: np.float32, window: int, scratch: Scratch,
) -> None:  # fmt: skip
    """Do one item of the plan's work."""
    sequence, first_row, num_rows = plan.work[item, 0], plan.work[item, 1], plan.work[item, 2]
    heads = (plan.work[item, 5], plan.work[item, 6], shape.num_kv_heads)
    end_row = first_row + num_rows
    rows = (heads[1] - heads[0]) * num_rows * shape.group_size
    split_size = split_tokens(shape.block_size)
    query, scores, weights = scratch.query[:rows], scratch.scores[:rows], scratch.weights[:rows]
    piece = _state_in(scratch.piece, rows, shape.head_dim)
    _load_queries(query, queries[first_row:end_row], heads)
    is_part = item < plan.parts.shape[0]
    room = plan.parts[item] if is_part else scratch.state
    state = _state_in(room, rows, shape.head_dim)
    _clear(state)
    positions, table = plan.positions[first_row:end_row], plan.block_tables[sequence]
    first_seen = max(positions[0] - window + 1, 0)
    last_seen = positions[num_rows - 1] + 1
    for split in range(max(plan.work[item, 3], first_seen // split_size), plan.work[item, 4]):
        origin = split * split_size
        begin, end = max(first_seen, origin), min(last_seen, origin + split_size)
        span = (origin, begin, end)
        _score(scores, query, blocks, like, table, span, heads, shape, routines)
        _soften_rows(scores, weights, piece, positions, span, window, shape.group_size, scale)
        _weigh(piece.sums, weights, blocks, like, table, span, heads, shape, routines)
        _merge(state, piece)
    if not is_part:
        _finish(out[first_row:end_row], state, heads[0], heads[1])


@njit(error_model="numpy")
def attend(
    working: Array, merging: Array, out: Array, queries: Array, blocks: int, like: Array,
    plan: AttentionPlan, shape: HeadShape, routines: HeadRoutines, scale: np.float32, window: int,
    scratch: Scratch,
) -> None:  # fmt: skip
    """A thread's share of the attention of one layer.

    working, merging: phases that nobody has begun, the same for all threads; scratch: its own.
    out: [rows, num_heads * head_dim], written; queries: [rows, at least that], heads first.
    blocks: address of the layer's, each [2 * num_kv_heads * head_dim * block_size], laid out as
    `storage` says; like: an array of their dtype.
    scale: float32, times log2(e), multiplies q · k. window: tokens that a row sees, its own
    included. out, queries and blocks are float32 or bfloat16 bits.
    """
    mine = 0
    item = claim(working)
    while item < plan.work.shape[0]:
        _attend_item(
            item, out, queries, blocks, like, plan, shape, routines, scale, window, scratch
        )
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
        _merge_parts(out[first_row:end_row], pieces, shape, head, scratch)
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
            scratch = new_scratch(plan, shape, routines, blocks)
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
                scratch,
            )

    return paged_attention


paged_attention = _attention_kernel(FINGERPRINT)
