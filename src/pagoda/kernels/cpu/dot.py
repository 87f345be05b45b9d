"""Dot products of rows with rows, many at once in vector registers.

    out[r, c] = Σ_k a[r, k] · b[c, k]

b is float32 or bfloat16 (as uint16), all else float32. Sixteen partial sums of a dot product are
kept, each in order of k, and added up in pairs at the end; what is left of k follows one by one.
The order is the same for every r and c however they are cut into tiles.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.vector import (
    Matrix,
    add,
    combine_lanes,
    constant,
    fma,
    load_bfloat16,
    load_float,
    matrix_at,
)

_LANES = 16
_VECTOR = ir.VectorType(ir.FloatType(), _LANES)
_SCALAR = ir.VectorType(ir.FloatType(), 1)
_TILES = ((8, 3), (1, 8))
"""Rows of a and of b in a tile: for many rows of a, and for the few that are left."""
COLUMNS = 24
"""Rows of b that are worked on while they are in cache: a multiple of both tiles'."""


@emitted
def dot_rows(
    typing: Any,
    out: Any, out_start: Any, out_stride: Any,
    a: Any, a_start: Any, a_stride: Any,
    b: Any, b_start: Any, b_stride: Any,
    rows: Any, columns: Any, depth: Any,
) -> Any:  # fmt: skip
    """Write out: [rows, columns] from a: [rows, depth] and b: [columns, depth]. For kernels only.

    out, a, b: contiguous 1-D arrays; each matrix starts at `*_start` and has a row every
    `*_stride` elements.
    """
    index = types.intp
    signature = types.void(out, index, index, a, index, index, b, index, index, index, index, index)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        operands = [
            matrix_at(context, builder, signature, args, position, args[position + 2])
            for position in (0, 3, 6)
        ]
        rows, columns, depth = args[9:]
        first_row = constant(0)
        for tile_rows, tile_columns in _TILES:
            step = constant(tile_rows)
            end_row = builder.sub(rows, builder.urem(builder.sub(rows, first_row), step))
            with cgutils.for_range_slice(builder, first_row, end_row, step) as (row, _):
                wide = constant(tile_columns)
                end_column = builder.sub(columns, builder.urem(columns, wide))
                with cgutils.for_range_slice(builder, constant(0), end_column, wide) as (column, _):
                    _emit_tile(builder, operands, row, column, depth, tile_rows, tile_columns)
                one = constant(1)
                with cgutils.for_range_slice(builder, end_column, columns, one) as (column, _):
                    _emit_tile(builder, operands, row, column, depth, tile_rows, 1)
            first_row = end_row
        return context.get_dummy_value()

    return signature, emit


def _emit_tile(
    builder: Any,
    operands: list[Matrix],
    row: Any,
    column: Any,
    depth: Any,
    num_rows: int,
    num_columns: int,
) -> None:
    out, a, b = operands
    a_rows = [a.row(builder, row, r) for r in range(num_rows)]
    b_rows = [b.row(builder, column, c) for c in range(num_columns)]
    whole = builder.sub(depth, builder.urem(depth, constant(_LANES)))
    sums = _emit_sums(builder, a_rows, b_rows, b.dtype, _VECTOR, constant(0), whole, None)
    starts = [
        [builder.insert_element(ir.Constant(_SCALAR, None), total, ir.Constant(ir.IntType(32), 0))
         for total in (combine_lanes(builder, builder.load(cell), add) for cell in cells)]
        for cells in sums
    ]  # fmt: skip
    rest = _emit_sums(builder, a_rows, b_rows, b.dtype, _SCALAR, whole, depth, starts)
    for r, cells in enumerate(rest):
        target = out.row(builder, row, r)
        for c, cell in enumerate(cells):
            value = builder.extract_element(builder.load(cell), ir.Constant(ir.IntType(32), 0))
            place = builder.gep(target, [builder.add(column, constant(c))])
            builder.store(value, place)


def _emit_sums(
    builder: Any,
    a_rows: list[Any],
    b_rows: list[Any],
    dtype: Any,
    vector: Any,
    first: Any,
    end: Any,
    starts: list[list[Any]] | None,
) -> list[list[Any]]:
    """Cells with the sums over k = first … end - 1 in steps of a vector, for every pair of rows."""
    zero = ir.Constant(vector, None)
    cells = [
        [
            cgutils.alloca_once_value(builder, zero if starts is None else starts[r][c])
            for c in range(len(b_rows))
        ]
        for r in range(len(a_rows))
    ]
    load = load_bfloat16 if dtype == types.uint16 else load_float
    with cgutils.for_range_slice(builder, first, end, constant(vector.count)) as (k, _):
        b_values = [load(builder, builder.gep(b_row, [k]), vector) for b_row in b_rows]
        for a_row, row_cells in zip(a_rows, cells, strict=True):
            a_value = load_float(builder, builder.gep(a_row, [k]), vector)
            for cell, b_value in zip(row_cells, b_values, strict=True):
                builder.store(fma(builder, a_value, b_value, cell), cell)
    return cells
