"""Attention over a paged cache, for any run of rows: one new token of a sequence or thousands.

The context of a row is cut into splits of whole blocks, fixed by position. In each split, in order:

    scores = q · K      highest = max(scores)      p = 2 ** (scores - highest)      mass = Σ p
    piece = p · V

and the pieces are merged in the order of the splits. Every sum has one order, fixed by positions
alone. So a row's result does not depend on the other rows of the batch, on how a prompt was cut
into chunks, on where its blocks lie or on the number of threads; not in a single bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import literally, njit, prange

from pagoda.kernels.cpu.number import exp2, fma, load, store
from pagoda.kernels.cpu.vector import lanes_max, lanes_sum, multiply, take_number

_SPLIT_TOKENS = 256
_TILE_ROWS = 24
_LANES = 16
_LOWEST = np.float32(-1e30)


def split_tokens(block_size: int) -> int:
    """Tokens of context in a split: whole blocks, near 256 tokens."""
    return block_size * -(-_SPLIT_TOKENS // block_size)


def tile_tokens(group_size: int) -> int:
    """Tokens of a tile: enough rows to keep the multipliers busy, few enough to stay in cache."""
    return max(1, _TILE_ROWS // group_size)


@njit(error_model="numpy")
def _soften(scores, start, begin, end, width):
    """Turn a row's scores of the tokens it sees, begin … end - 1, into 2 ** (score - highest).

    The row is scores[start : start + width]; the rest of it becomes 0. Returns highest and sum.
    """
    if begin >= end:
        for t in range(width):
            scores[start + t] = np.float32(0.0)
        return _LOWEST, np.float32(0.0)
    for t in range(begin):
        scores[start + t] = _LOWEST
    for t in range(end, width):
        scores[start + t] = _LOWEST
    highest = lanes_max(scores, start, width)
    for t in range(width):
        scores[start + t] = exp2(scores[start + t] - highest)
    return highest, lanes_sum(scores, start, width)


@njit(error_model="numpy")
def _merge(state, start, piece, piece_start, highest, mass, head_dim):
    """Add a split's piece of a row to the row's state: head_dim sums, their highest, their mass."""
    end = start + head_dim
    together = max(state[end], highest)
    old = exp2(state[end] - together)
    new = exp2(highest - together)
    state[end] = together
    state[end + 1] = fma(state[end + 1], old, mass * new)
    for d in range(head_dim):
        state[start + d] = fma(state[start + d], old, piece[piece_start + d] * new)


@njit(error_model="numpy")
def _clear(state, rows, head_dim):
    for row in range(rows):
        start = row * (head_dim + 2)
        for d in range(head_dim):
            state[start + d] = np.float32(0.0)
        state[start + head_dim] = _LOWEST
        state[start + head_dim + 1] = np.float32(0.0)


@njit(error_model="numpy")
def _load_queries(query, queries, first_row, num_rows, head, scale, head_dim, group_size):
    """The queries of one KV head as float32, times scale: [num_rows * group_size, head_dim]."""
    width = group_size * head_dim
    for row in range(num_rows):
        source = queries[first_row + row]
        for i in range(width):
            query[row * width + i] = load(source, head * width + i) * scale


@njit(error_model="numpy")
def _finish(out, state, first_row, num_rows, head, head_dim, group_size):
    for row in range(num_rows):
        target = out[first_row + row]
        for g in range(group_size):
            start = (row * group_size + g) * (head_dim + 2)
            inverse = np.float32(1.0) / state[start + head_dim + 1]
            column = (head * group_size + g) * head_dim
            for d in range(head_dim):
                store(target, column + d, state[start + d] * inverse)


@njit(error_model="numpy")
def _score(scores, query, blocks, table, head, span, head_dim, group_size, block_size):
    """scores[row, token - origin] = q · k for all tokens of the blocks that hold the span."""
    origin, begin, end = span
    rows = query.shape[0] // head_dim
    stride = scores.shape[0] // rows
    start = head * head_dim * block_size
    scores[:] = np.float32(0.0)
    for b in range(begin // block_size, (end + block_size - 1) // block_size):
        multiply(
            scores, b * block_size - origin, stride,
            query, 0, head_dim,
            blocks[table[b]], start, block_size,
            rows, head_dim, literally(block_size), literally(group_size),
        )  # fmt: skip


@njit(error_model="numpy")
def _weigh(piece, weights, blocks, table, head, span, head_dim, group_size, block_size):
    """piece[row] = Σ weights[row, token - origin] · v over the span's tokens, and no others.

    `head` counts heads of K and V in a block, those of K first.
    """
    origin, begin, end = span
    rows = piece.shape[0] // head_dim
    stride = weights.shape[0] // rows
    piece[:] = np.float32(0.0)
    for b in range(begin // block_size, (end + block_size - 1) // block_size):
        first = max(begin, b * block_size)
        depth = min(end, (b + 1) * block_size) - first
        start = (head * block_size + first - b * block_size) * head_dim
        multiply(
            piece, 0, head_dim,
            weights, first - origin, stride,
            blocks[table[b]], start, head_dim,
            rows, depth, literally(head_dim), literally(group_size),
        )  # fmt: skip


@njit(error_model="numpy")
def _attend_span(
    state, query, scores, piece, blocks, table, positions, head, span, window,
    head_dim, group_size, block_size,
):  # fmt: skip
    """Merge what the rows at `positions` see of a span into their state. Changes scores, piece."""
    origin, begin, end = span
    num_kv_heads = blocks.shape[1] // (2 * head_dim * block_size)
    rows = query.shape[0] // head_dim
    stride = scores.shape[0] // rows
    width = (end - origin + _LANES - 1) // _LANES * _LANES
    _score(scores, query, blocks, table, head, span, head_dim, group_size, block_size)
    marks = np.empty((rows, 2), np.float32)
    for row in range(rows):
        position = positions[row // group_size]
        row_begin = max(position - window + 1, begin) - origin
        row_end = min(position + 1, end) - origin
        marks[row, 0], marks[row, 1] = _soften(scores, row * stride, row_begin, row_end, width)
    _weigh(
        piece, scores, blocks, table, num_kv_heads + head, span, head_dim, group_size, block_size
    )
    for row in range(rows):
        start = row * (head_dim + 2)
        _merge(state, start, piece, row * head_dim, marks[row, 0], marks[row, 1], head_dim)


@njit(error_model="numpy")
def _merge_parts(out, parts, merge, head, head_dim, group_size):
    first_row, num_rows, first_part, last_part = merge
    rows = num_rows * group_size
    state = np.empty(rows * (head_dim + 2), np.float32)
    _clear(state, rows, head_dim)
    for part in range(first_part, last_part):
        piece = parts[part, head]
        for row in range(rows):
            start = row * (head_dim + 2)
            end = start + head_dim
            _merge(state, start, piece, start, piece[end], piece[end + 1], head_dim)
    _finish(out, state, first_row, num_rows, head, head_dim, group_size)


@cache
def paged_attention_kernel(head_dim: int, group_size: int, block_size: int) -> Callable[..., None]:
    """The kernel for heads of `head_dim`, `group_size` query heads to a KV head, and a block size.

    The three are constants of the compiled code, which is kept on disk for each set of them. The
    kernel is `paged_attention(out, queries, blocks, block_tables, positions, work, merges, parts,
    scale, window, num_threads)`:

    out: [rows, num_heads * head_dim], written; queries: [rows, at least that], heads first.
    blocks: [num_blocks, 2 * num_kv_heads * head_dim * block_size], laid out as `storage` says.
    block_tables: [sequences, blocks] int32; positions: [rows] int32.
    work: [items, 5] int64: sequence, first row, number of rows, first split, end of splits; the
    first `len(parts)` of them only leave their state, which `merges` take up: [merged, 4] int64:
    first row, number of rows, first part, end of parts.
    parts: [num_parts, num_kv_heads, most rows of a part * group_size * (head_dim + 2)] float32.
    scale: float32, times log2(e), multiplies q · k. window: tokens that a row sees, its own
    included.
    out and queries, and blocks, are float32 or bfloat16 bits.
    """
    split_size = split_tokens(block_size)
    stride = -(-split_size // _LANES) * _LANES

    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def paged_attention(
        out, queries, blocks, block_tables, positions, work, merges, parts, scale, window,
        num_threads,
    ):  # fmt: skip
        num_kv_heads = blocks.shape[1] // (2 * head_dim * block_size)
        num_items = work.shape[0] * num_kv_heads
        counter = np.zeros(1, np.int64)
        for _ in prange(num_threads):
            # Threads take the next item when they are done with one: items differ in length.
            while True:
                number = take_number(counter)
                if number >= num_items:
                    break
                item = number // num_kv_heads
                head = number - item * num_kv_heads
                sequence, first_row, num_rows = work[item, 0], work[item, 1], work[item, 2]
                rows = num_rows * group_size
                query = np.empty(rows * head_dim, np.float32)
                _load_queries(
                    query, queries, first_row, num_rows, head, scale, head_dim, group_size
                )
                scores = np.empty(rows * stride, np.float32)
                piece = np.empty(rows * head_dim, np.float32)
                state = np.empty(rows * (head_dim + 2), np.float32)
                _clear(state, rows, head_dim)
                row_positions = positions[first_row : first_row + num_rows]
                first_seen = max(row_positions[0] - window + 1, 0)
                last_seen = row_positions[num_rows - 1] + 1
                first_split = max(work[item, 3], first_seen // split_size)
                for split in range(first_split, work[item, 4]):
                    origin = split * split_size
                    begin = max(first_seen, origin)
                    end = min(last_seen, origin + split_size)
                    _attend_span(
                        state, query, scores, piece, blocks, block_tables[sequence],
                        row_positions, head, (origin, begin, end), window,
                        head_dim, group_size, block_size,
                    )  # fmt: skip
                if item < parts.shape[0]:
                    parts[item, head, : rows * (head_dim + 2)] = state
                else:
                    _finish(out, state, first_row, num_rows, head, head_dim, group_size)
        for number in prange(merges.shape[0] * num_kv_heads):
            merge = number // num_kv_heads
            _merge_parts(
                out,
                parts,
                (merges[merge, 0], merges[merge, 1], merges[merge, 2], merges[merge, 3]),
                number - merge * num_kv_heads,
                head_dim,
                group_size,
            )

    return paged_attention
