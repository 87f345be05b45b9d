"""From the merged projection to queries and the cache: norm, rotary embedding, the write."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils

from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.norm import norm_factor
from pagoda.kernels.cpu.number import emitted, integer_at, number_at, put_number
from pagoda.kernels.cpu.pages import LayerPages
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.team import claim, finish
from pagoda.kernels.cpu.vector import F32, LANES, floats, index, load_vector, store_vector
from pagoda.kernels.cpu.write import WriteRoutines, turn_queries, turn_rows, write_row

MOST_ROWS = 16
"""Rows of an item: neighbouring tokens share cache lines of K, which two cores fight over."""


@njit(error_model="numpy")
def _prepare_heads(
    heads: int, count: int, head_dim: int, norm: int, norm_width: int, eps: np.float32,
    cosines: int, sines: int, half: int,
) -> None:  # fmt: skip
    """Give heads, [count, head_dim] float32, their norm, unless that is at 0, and their rotation.

    norm_width: numbers that are normed together, of one head or of all.
    """
    if norm != 0 and count:
        for start in range(0, count * head_dim, norm_width):
            part = heads + start * 4
            factor = norm_factor(part, norm_width, eps)
            for i in range(norm_width):
                value = number_at(part, i, False) * factor * number_at(norm, i, False)
                put_number(part, i, value, False)
    for head in range(count):
        rotate_halves(heads + head * head_dim * 4, half, cosines, sines)


@emitted
def rotate_halves(typing: Any, head: Any, half: Any, cosines: Any, sines: Any) -> Any:
    """Rotate number i of a head against number half + i: vectors first, then what is left."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        head, cosines, sines = (builder.inttoptr(args[i], F32.as_pointer()) for i in (0, 2, 3))
        half = args[1]
        opposite = builder.gep(head, [half])
        whole = builder.sub(half, builder.urem(half, index(LANES)))
        for start, end, lanes in ((index(0), whole, LANES), (whole, half, 1)):
            with cgutils.for_range_slice(builder, start, end, index(lanes)) as (place, _):
                x, y, cosine, sine = (
                    load_vector(builder, builder.gep(base, [place]), floats(lanes))
                    for base in (head, opposite, cosines, sines)
                )
                first = builder.fsub(builder.fmul(x, cosine), builder.fmul(y, sine))
                second = builder.fadd(builder.fmul(y, cosine), builder.fmul(x, sine))
                store_vector(builder, first, builder.gep(head, [place]))
                store_vector(builder, second, builder.gep(opposite, [place]))
        return context.get_dummy_value()

    size = types.intp
    return types.void(size, size, size, size), emit


@cache
def rotate_routine() -> Any:
    """The norm and the rotation of a row's queries and keys."""

    def rotate_row(
        qkv: int, num_heads: int, num_keys: int, head_dim: int, cosines: int, sines: int,
        half: int, q_norm: int, k_norm: int, norms_rows: int, eps: int,
    ) -> None:  # fmt: skip
        """qkv: [(num_heads + num_keys) * head_dim or more] float32, changed.

        cosines, sines: [half] float32. q_norm, k_norm: [head_dim] float32, or at 0; with norms_rows
        [num_heads * head_dim] and [num_keys * head_dim]: all heads are one row. eps: [1].
        """
        small, keys = number_at(eps, 0, False), qkv + num_heads * head_dim * 4
        q_width = num_heads * head_dim if norms_rows else head_dim
        k_width = num_keys * head_dim if norms_rows else head_dim
        _prepare_heads(qkv, num_heads, head_dim, q_norm, q_width, small, cosines, sines, half)
        _prepare_heads(keys, num_keys, head_dim, k_norm, k_width, small, cosines, sines, half)

    return compiled(rotate_row, 11)


@njit(error_model="numpy")
def rotate_and_write(
    phase: int, num_threads: int, rotate: int, write: WriteRoutines, qkv: int, rows: int,
    blocks: int, pages: LayerPages, slot_mapping: int, positions: int, sink_positions: int,
    sink_queries: int, shape: HeadShape, cosines: int, sines: int, half: int, q_norm: int,
    k_norm: int, norms_rows: int, eps: int, memory: int,
) -> None:  # fmt: skip
    """A thread's share of what follows the projection; see `rotate_routine`, `write_row`.

    phase: one that nobody has begun, the same for all threads; num_threads: how many those are.
    qkv: all rows. blocks: the layer's. The slots of this step are written. slot_mapping: [rows]
    int64, all distinct; positions: [rows] int32. sink_positions: likewise, at which the rows'
    queries go to sink_queries: [rows, num_heads * head_dim] float32; 0: there are none. cosines,
    sines: [positions, half] float32.
    memory: the thread's own, [`MOST_ROWS`, head_dim] float32.
    """
    row_bytes = (shape.group_size + 2) * shape.num_kv_heads * shape.head_dim * 4
    num_heads = shape.num_kv_heads * shape.group_size
    query_bytes = num_heads * shape.head_dim * 4
    size = min(MOST_ROWS, (rows + num_threads - 1) // num_threads)
    total = (rows + size - 1) // size
    mine = 0
    item = claim(phase)
    while item < total:
        first, last = item * size, min((item + 1) * size, rows)
        for r in range(first, last):
            row = qkv + r * row_bytes
            if sink_positions != 0:
                query = sink_queries + r * query_bytes
                for i in range(num_heads * shape.head_dim):
                    put_number(query, i, number_at(row, i, False), False)
                angles = integer_at(sink_positions, r, 32) * half * 4
                call(
                    rotate,
                    (query, num_heads, 0, shape.head_dim, cosines + angles, sines + angles, half,
                     q_norm, k_norm, norms_rows, eps),
                )  # fmt: skip
            angles = integer_at(positions, r, 32) * half * 4
            call(
                rotate,
                (row, num_heads, shape.num_kv_heads, shape.head_dim, cosines + angles,
                 sines + angles, half, q_norm, k_norm, norms_rows, eps),
            )  # fmt: skip
        if sink_positions != 0:
            turn_queries(
                write, sink_queries + first * query_bytes, query_bytes, last - first, pages, shape,
                memory,
            )  # fmt: skip
        turn_rows(write, qkv + first * row_bytes, row_bytes, last - first, pages, shape, memory)
        for r in range(first, last):
            slot = integer_at(slot_mapping, r, 64)
            block = blocks + slot // shape.block_size * pages.layout.block_bytes
            offset = slot % shape.block_size
            write_row(write, qkv + r * row_bytes, block, offset, pages, shape, memory)
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
