"""Rows times a square matrix, in place: the change of basis that a codec asks for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import (
    Columns,
    Tile,
    chunks,
    for_each_tile,
    most_rows,
    vector_lanes,
    vectors,
)
from pagoda.kernels.cpu.vector import (
    F32,
    after,
    floats,
    index,
    load_vector,
    pointer,
    row_pointers,
    store_rounded,
)
from pagoda.kernels.reference import bfloat16_bits

_BFLOAT_BITS = ir.IntType(16)


class _Rows(NamedTuple):
    """Some rows."""

    start: Any
    """Pointer to groups."""
    stride: Any
    """Groups from row to row."""


@cache
def turn_routine(width: int, paired: bool) -> Any:
    """For rows of so many numbers, and products of bfloat16, which come in pairs, or float32."""

    def turn_rows(x: int, stride: int, matrix: int, rows: int, memory: int) -> None:
        """x[row] = x[row] · matrix.

        x: [rows, width] float32, changed, each row `stride` numbers after the one before it;
        matrix: as `matrix_groups` lays it out; memory: [rows, width] float32. Rows are rounded to
        bfloat16 before they meet bfloat16. A row's result is its own, whatever rows there are
        beside it.
        """
        _turn_rows((x, stride, matrix, rows, memory), width, paired)

    return compiled(turn_rows, 5)


def matrix_groups(matrices: Array, paired: bool) -> Array:
    """Matrices as a product reads them: [..., width, width] float32, or of bfloat16's bits
    [..., width / 2, 2 width], the numbers of two lines in turn."""
    if not paired:
        return matrices.astype(np.float32)
    bits = bfloat16_bits(matrices)
    width = bits.shape[-1]
    pairs = bits.reshape(*bits.shape[:-2], width // 2, 2, width).swapaxes(-1, -2)
    return pairs.reshape(*bits.shape[:-2], width // 2, 2 * width)


@emitted
def _turn_rows(typing: Any, args: Any, width: Any, paired: Any) -> Any:
    size, is_paired = width.literal_value, paired.literal_value
    line = size // 2 if is_paired else size  # groups of a row

    def emit(builder: Any, values: Sequence[Any]) -> None:
        x, stride, matrix, rows, memory = values
        target, source, base = (pointer(builder, each) for each in (x, memory, matrix))
        _copy_rows(
            builder, is_paired, size, _Rows(target, stride), _Rows(source, index(line)), rows
        )

        def rows_of(start: Any, stride: Any, first: Any, count: int) -> list[Any]:
            place = builder.gep(start, [builder.mul(first, stride)])
            return row_pointers(builder, place, stride, count)

        def emit_tile(count: int, first: Any, start: Any, columns: Columns) -> None:
            x_rows = rows_of(source, index(line), first, count)
            out_rows = rows_of(target, stride, first, count)
            tile = Tile(builder, is_paired, count, [lanes for _, lanes in columns])
            with cgutils.for_range(builder, index(line)) as loop:
                place = builder.add(builder.mul(loop.index, index(size)), start)
                tile.add(
                    [builder.gep(each, [loop.index]) for each in x_rows],
                    [after(builder, base, place, column) for column, _ in columns],
                )
            tile.store([builder.gep(each, [start]) for each in out_rows])

        for column, number, lanes in chunks(vector_lanes(size)):
            columns, step = vectors(lanes), sum(lanes)
            with cgutils.for_range(builder, index(number)) as loop:
                start = builder.add(index(column), builder.mul(loop.index, index(step)))
                emit_columns = partial(emit_tile, start=start, columns=columns)
                for_each_tile(builder, rows, most_rows(len(lanes)), emit_columns)

    return routine_body(args, (width, paired), emit)


def _copy_rows(
    builder: Any, paired: bool, size: int, source: _Rows, target: _Rows, count: Any
) -> None:
    """Write rows of `size` float32 elsewhere, rounded to bfloat16 if paired."""
    with cgutils.for_range(builder, count) as each:
        read, write = (
            builder.gep(rows.start, [builder.mul(each.index, rows.stride)])
            for rows in (source, target)
        )
        read = builder.bitcast(read, F32.as_pointer())
        write = builder.bitcast(write, (_BFLOAT_BITS if paired else F32).as_pointer())
        column = 0
        for lanes in vector_lanes(size):
            value = load_vector(builder, builder.gep(read, [index(column)]), floats(lanes))
            store_rounded(builder, paired, value, builder.gep(write, [index(column)]))
            column += lanes
