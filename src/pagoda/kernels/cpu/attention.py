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
from numba import njit, prange
from numba.misc.special import literally

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import exp2, fma, load, store
from pagoda.kernels.cpu.vector import lanes_max, lanes_sum, multiply, take_number

_SPLIT_TOKENS = 256
_TILE_ROWS = 24
_LANES = 16
_LOWEST = np.float32(-1e30)

Span = tuple[int, int, int]
"""Tokens of one split: where the split starts, the first token that counts, the end of those."""


def split_tokens(block_size: int) -> int:
    """Tokens of context in a split: whole blocks, near 256 tokens."""
    return block_size * -(-_SPLIT_TOKENS // block_size)


def tile_tokens(group_size: int) -> int:
    """Tokens of a tile: enough rows to keep the multipliers busy, few enough to stay in cache."""
    return max(1, _TILE_ROWS // group_size)


@njit(error_model="numpy")
def _soften(scores: Array, begin: int, end: int) -> tuple[np.float32, np.float32]:
    """Turn a row's scores of the tokens it sees, begin … end - 1, into 2 ** (score - highest).

    The other scores become 0. Returns highest and the sum of the row.
    """
    if begin >= end:
        scores[:] = np.float32(0.0)
        return _LOWEST, np.float32(0.0)
    scores[:begin] = _LOWEST
    scores[end:] = _LOWEST
    highest = lanes_max(scores)
    for t in range(scores.shape[0]):
        scores[t] = exp2(scores[t] - highest)
    return highest, lanes_sum(scores)


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
        state[row, head_dim] = _LOWEST


@njit(error_model="numpy")
def _load_queries(query: Array, queries: Array, head: int, scale: np.float32) -> None:
    """The queries of one KV head as float32, times scale: [rows, head_dim]."""
    head_dim = query.shape[1]
    group_size = query.shape[0] // queries.shape[0]
    for row in range(queries.shape[0]):
        for g in range(group_size):
            start = (head * group_size + g) * head_dim
            source = queries[row, start : start + head_dim]
            target = query[row * group_size + g]
            for d in range(head_dim):
                target[d] = load(source, d) * scale


@njit(error_model="numpy")
def _finish(out: Array, state: Array, head: int) -> None:
    """Divide each row's sums by its mass, into the columns of out that belong to the KV head."""
    head_dim = state.shape[1] - 2
    group_size = state.shape[0] // out.shape[0]
    for row in range(out.shape[0]):
        for g in range(group_size):
            start = (head * group_size + g) * head_dim
            target = out[row, start : start + head_dim]
            sums = state[row * group_size + g]
            inverse = np.float32(1.0) / sums[head_dim + 1]
            for d in range(head_dim):
                store(target, d, sums[d] * inverse)


@njit(error_model="numpy")
def _score(
    scores: Array, query: Array, blocks: Array, table: Array, head: int, span: Span,
    head_dim: int, group_size: int, block_size: int,
) -> None:  # fmt: skip
    """scores[row, token - origin] = q · k for all tokens of the blocks that hold the span."""
    origin, begin, end = span
    start = head * head_dim * block_size
    scores[:] = np.float32(0.0)
    for b in range(begin // block_size, (end + block_size - 1) // block_size):
        multiply(
            scores, b * block_size - origin, scores.shape[1],
            query, 0, head_dim,
            blocks[table[b]], start, block_size,
            query.shape[0], head_dim, literally(block_size), literally(group_size),
        )  # fmt: skip


@njit(error_model="numpy")
def _weigh(
    piece: Array, weights: Array, blocks: Array, table: Array, head: int, span: Span,
    head_dim: int, group_size: int, block_size: int,
) -> None:  # fmt: skip
    """piece[row] = Σ weights[row, token - origin] · v over the span's tokens, and no others.

    `head` counts heads of K and V in a block, those of K first.
    """
    origin, begin, end = span
    piece[:] = np.float32(0.0)
    for b in range(begin // block_size, (end + block_size - 1) // block_size):
        first = max(begin, b * block_size)
        depth = min(end, (b + 1) * block_size) - first
        start = (head * block_size + first - b * block_size) * head_dim
        multiply(
            piece, 0, head_dim,
            weights, first - origin, weights.shape[1],
            blocks[table[b]], start, head_dim,
            piece.shape[0], depth, literally(head_dim), literally(group_size),
        )  # fmt: skip


@njit(error_model="numpy")
def _attend_span(
    state: Array, query: Array, scores: Array, piece: Array, blocks: Array, table: Array,
    positions: Array, head: int, span: Span, window: int,
    head_dim: int, group_size: int, block_size: int,
) -> None:  # fmt: skip
    """Merge what the rows at `positions` see of a span into their state. Changes scores, piece."""
    origin, begin, end = span
    num_kv_heads = blocks.shape[1] // (2 * head_dim * block_size)
    width = (end - origin + _LANES - 1) // _LANES * _LANES
    _score(scores, query, blocks, table, head, span, head_dim, group_size, block_size)
    marks = np.empty((query.shape[0], 2), np.float32)
    for row in range(query.shape[0]):
        position = positions[row // group_size]
        row_begin = max(position - window + 1, begin) - origin
        row_end = min(position + 1, end) - origin
        marks[row, 0], marks[row, 1] = _soften(scores[row, :width], row_begin, row_end)
    _weigh(
        piece, scores, blocks, table, num_kv_heads + head, span, head_dim, group_size, block_size
    )
    for row in range(query.shape[0]):
        _merge(state[row], piece[row], marks[row, 0], marks[row, 1])


@njit(error_model="numpy")
def _merge_parts(out: Array, parts: Array, head: int, group_size: int) -> None:
    """Merge the parts of one sequence, [parts, kv heads, rows or more, head_dim + 2], into out."""
    rows = out.shape[0] * group_size
    head_dim = parts.shape[3] - 2
    state = np.empty((rows, head_dim + 2), np.float32)
    _clear(state, head_dim)
    for part in range(parts.shape[0]):
        for row in range(rows):
            piece = parts[part, head, row]
            _merge(state[row], piece[:head_dim], piece[head_dim], piece[head_dim + 1])
    _finish(out, state, head)


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
    parts: [num_parts, num_kv_heads, most rows of a part * group_size, head_dim + 2] float32.
    scale: float32, times log2(e), multiplies q · k. window: tokens that a row sees, its own
    included.
    out and queries, and blocks, are float32 or bfloat16 bits.
    """
    split_size = split_tokens(block_size)
    stride = -(-split_size // _LANES) * _LANES

    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def paged_attention(
        out: Array, queries: Array, blocks: Array, block_tables: Array, positions: Array,
        work: Array, merges: Array, parts: Array, scale: np.float32, window: int,
        num_threads: int,
    ) -> None:  # fmt: skip
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
                end_row = first_row + num_rows
                rows = num_rows * group_size
                query = np.empty((rows, head_dim), np.float32)
                _load_queries(query, queries[first_row:end_row], head, scale)
                scores = np.empty((rows, stride), np.float32)
                piece = np.empty((rows, head_dim), np.float32)
                if item < parts.shape[0]:
                    state = parts[item, head, :rows]
                else:
                    state = np.empty((rows, head_dim + 2), np.float32)
                _clear(state, head_dim)
                first_seen = max(positions[first_row] - window + 1, 0)
                last_seen = positions[end_row - 1] + 1
                first_split = max(work[item, 3], first_seen // split_size)
                for split in range(first_split, work[item, 4]):
                    origin = split * split_size
                    begin = max(first_seen, origin)
                    end = min(last_seen, origin + split_size)
                    _attend_span(
                        state, query, scores, piece, blocks, block_tables[sequence],
                        positions[first_row:end_row], head, (origin, begin, end), window,
                        head_dim, group_size, block_size,
                    )  # fmt: skip
                if item >= parts.shape[0]:
                    _finish(out[first_row:end_row], state, head)
        for number in prange(merges.shape[0] * num_kv_heads):
            merge = number // num_kv_heads
            first_row, end_row = merges[merge, 0], merges[merge, 0] + merges[merge, 1]
            pieces = parts[merges[merge, 2] : merges[merge, 3]]
            head = number - merge * num_kv_heads
            _merge_parts(out[first_row:end_row], pieces, head, group_size)

    return paged_attention
