"""Attention over a paged cache, for any run of rows: one new token of a sequence or thousands.

The context of a row is cut into splits of whole blocks, fixed by position. In each split, in order:

    scores = q · K      highest = max(scores)      p = 2 ** (scores - highest)      mass = Σ p
    piece = p · V

and the pieces are merged in the order of the splits. Every sum has one order, fixed by positions
alone. So a row's result does not depend on the other rows of the batch, on how a prompt was cut
into chunks, on where its blocks lie or on the number of threads; not in a single bit.

One thread works on all heads of a few tokens at once, because K of all heads lie side by side in a
block, and memory is fastest when it is read in long runs. Rows of queries, scores and sums are
ordered by KV head first, then by token, then by query head within its group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit, prange
from numba.misc.special import literally

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.fingerprint import FINGERPRINT
from pagoda.kernels.cpu.number import exp2, fma, load, store
from pagoda.kernels.cpu.product import multiply
from pagoda.kernels.cpu.vector import lanes_max, lanes_sum, take_number

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
def _load_queries(query: Array, queries: Array, num_kv_heads: int, scale: np.float32) -> None:
    """The queries of a few tokens as float32, times scale, in the order of rows."""
    num_tokens, head_dim = queries.shape[0], query.shape[1]
    group_size = query.shape[0] // (num_kv_heads * num_tokens)
    row = 0
    for head in range(num_kv_heads):
        for token in range(num_tokens):
            for g in range(group_size):
                start = (head * group_size + g) * head_dim
                source = queries[token, start : start + head_dim]
                for d in range(head_dim):
                    query[row, d] = load(source, d) * scale
                row += 1


@njit(error_model="numpy")
def _finish(out: Array, state: Array, first_head: int, num_heads: int) -> None:
    """Divide each row's sums by its mass, into the columns of out of those KV heads."""
    num_tokens, head_dim = out.shape[0], state.shape[1] - 2
    group_size = state.shape[0] // (num_heads * num_tokens)
    row = 0
    for head in range(first_head, first_head + num_heads):
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
    scores: Array, query: Array, blocks: Array, table: Array, span: Span,
    head_dim: int, group_size: int, block_size: int,
) -> None:  # fmt: skip
    """scores[row, token - origin] = q · k for all tokens of the blocks that hold the span."""
    origin, begin, end = span
    size = head_dim * block_size
    num_kv_heads = blocks.shape[1] // (2 * size)
    rows = query.shape[0] // num_kv_heads
    first, last = begin // block_size, (end + block_size - 1) // block_size
    scores[:] = np.float32(0.0)
    for b in range(first, last):
        block = blocks[table[b]]
        # After the last K comes the first V.
        following, offset = b + 1, 0
        if following == last:
            following, offset = first, num_kv_heads * size
        ahead = blocks[table[following]]
        for head in range(num_kv_heads):
            row = head * rows
            multiply(
                scores, row * scores.shape[1] + b * block_size - origin, scores.shape[1],
                query, row * head_dim, head_dim,
                block, head * size, block_size, ahead, offset + head * size,
                rows, head_dim, literally(block_size), literally(group_size),
            )  # fmt: skip


@njit(error_model="numpy")
def _weigh(
    piece: Array, weights: Array, blocks: Array, table: Array, span: Span,
    head_dim: int, group_size: int, block_size: int,
) -> None:  # fmt: skip
    """piece[row] = Σ weights[row, token - origin] · v over the span's tokens, and no others."""
    origin, begin, end = span
    num_kv_heads = blocks.shape[1] // (2 * head_dim * block_size)
    rows = piece.shape[0] // num_kv_heads
    last = (end + block_size - 1) // block_size
    piece[:] = np.float32(0.0)
    for b in range(begin // block_size, last):
        block = blocks[table[b]]
        ahead = blocks[table[min(b + 1, last - 1)]]
        token = max(begin, b * block_size)
        depth = min(end, (b + 1) * block_size) - token
        for head in range(num_kv_heads):
            row = head * rows
            start = ((num_kv_heads + head) * block_size + token - b * block_size) * head_dim
            multiply(
                piece, row * head_dim, head_dim,
                weights, row * weights.shape[1] + token - origin, weights.shape[1],
                block, start, head_dim, ahead, start,
                rows, depth, literally(head_dim), literally(group_size),
            )  # fmt: skip


@njit(error_model="numpy")
def _attend_span(
    state: Array, query: Array, scores: Array, piece: Array, blocks: Array, table: Array,
    positions: Array, span: Span, window: int, head_dim: int, group_size: int, block_size: int,
) -> None:  # fmt: skip
    """Merge what the tokens at `positions` see of a span into the state of their rows.

    Changes scores and piece.
    """
    origin, begin, end = span
    width = (end - origin + _LANES - 1) // _LANES * _LANES
    _score(scores, query, blocks, table, span, head_dim, group_size, block_size)
    marks = np.empty((query.shape[0], 2), np.float32)
    for row in range(query.shape[0]):
        position = positions[row // group_size % positions.shape[0]]
        row_begin = max(position - window + 1, begin) - origin
        row_end = min(position + 1, end) - origin
        marks[row, 0], marks[row, 1] = _soften(scores[row, :width], row_begin, row_end)
    _weigh(piece, scores, blocks, table, span, head_dim, group_size, block_size)
    for row in range(query.shape[0]):
        _merge(state[row], piece[row], marks[row, 0], marks[row, 1])


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
    _finish(out, state, head, 1)


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
    parts: [num_parts, most rows of a part * num_heads, head_dim + 2] float32.
    scale: float32, times log2(e), multiplies q · k. window: tokens that a row sees, its own
    included.
    out and queries, and blocks, are float32 or bfloat16 bits.
    """
    split_size = split_tokens(block_size)
    stride = -(-split_size // _LANES) * _LANES
    fingerprint = FINGERPRINT

    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def paged_attention(
        out: Array, queries: Array, blocks: Array, block_tables: Array, positions: Array,
        work: Array, merges: Array, parts: Array, scale: np.float32, window: int,
        num_threads: int,
    ) -> None:  # fmt: skip
        _ = fingerprint
        num_kv_heads = blocks.shape[1] // (2 * head_dim * block_size)
        counter = np.zeros(1, np.int64)
        for _ in prange(num_threads):
            # Threads take the next item when they are done with one: items differ in length.
            while True:
                item = take_number(counter)
                if item >= work.shape[0]:
                    break
                sequence, first_row, num_rows = work[item, 0], work[item, 1], work[item, 2]
                end_row = first_row + num_rows
                rows = num_kv_heads * num_rows * group_size
                query = np.empty((rows, head_dim), np.float32)
                _load_queries(query, queries[first_row:end_row], num_kv_heads, scale)
                scores = np.empty((rows, stride), np.float32)
                piece = np.empty((rows, head_dim), np.float32)
                if item < parts.shape[0]:
                    state = parts[item, :rows]
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
                        positions[first_row:end_row], (origin, begin, end), window,
                        head_dim, group_size, block_size,
                    )  # fmt: skip
                if item >= parts.shape[0]:
                    _finish(out[first_row:end_row], state, 0, num_kv_heads)
        for number in prange(merges.shape[0] * num_kv_heads):
            merge = number // num_kv_heads
            first_row, end_row = merges[merge, 0], merges[merge, 0] + merges[merge, 1]
            pieces = parts[merges[merge, 2] : merges[merge, 3]]
            head = number - merge * num_kv_heads
            _merge_parts(out[first_row:end_row], pieces, head, group_size)

    return paged_attention
