"""A small matrix product that keeps its result in vector registers.

    out[r, c] += Σ_k a[r, k] · b[k, c]     in order of k, one fused multiply-add each

b is float32 or bfloat16 (as uint16), all else float32. The order of each sum is the order of k
however a product is cut into tiles, so a result's bits depend on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.vector import (
    UNIT,
    Matrix,
    constant,
    fma,
    load_bfloat16,
    load_float,
    matrix_at,
    prefetch,
    spread,
)

_F32 = ir.FloatType()
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut into tiles; all numbers are constants of compiled code."""

    columns: int
    """Columns of a tile; divides the product's."""
    small_rows: int
    """Rows of a small tile; divides the rows that always come together."""
    big_rows: int
    """Rows of a big tile, a multiple of `small_rows`, for products of many rows."""


def tiling(columns: int, group_size: int) -> Tiling:
    """Tiles for a product of so many columns whose rows come in multiples of `group_size`.

    Of all widths that fit, the one that reads least for each multiply-add.
    """

    def reads(width: int) -> float:
        vectors, rows = len(vector_widths(width)), _small_rows(width, group_size)
        return (vectors + rows) / (vectors * rows)

    fitting = [
        width
        for width in range(1, columns + 1)
        if columns % width == 0
        and (width == columns or width % UNIT.lanes == 0)
        and len(vector_widths(width)) <= UNIT.vectors
    ]
    width = min(fitting, key=reads, default=columns)
    small = _small_rows(width, group_size)
    return Tiling(width, small, small * max(1, _most_rows(width) // small))


def _most_rows(width: int) -> int:
    return max(1, UNIT.accumulators // len(vector_widths(width)))


def _small_rows(width: int, group_size: int) -> int:
    most = _most_rows(width)
    return max(rows for rows in range(1, most + 1) if group_size % rows == 0)


def vector_widths(columns: int) -> list[int]:
    """Cut a row into vectors: as many full registers as fit, then halves of halves."""
    widths = [UNIT.lanes] * (columns // UNIT.lanes)
    rest, width = columns % UNIT.lanes, UNIT.lanes // 2
    while rest:
        if rest >= width:
            widths.append(width)
            rest -= width
        width //= 2
    return widths


@emitted
def multiply(
    typing: Any,
    out: Any, out_start: Any, out_stride: Any,
    a: Any, a_start: Any, a_stride: Any,
    b: Any, b_start: Any, b_stride: Any,
    next_b: Any, next_start: Any,
    rows: Any, depth: Any, columns: Any, group_size: Any,
) -> Any:  # fmt: skip
    """out += a · b; see the module. For kernels only.

    out, a, b: contiguous 1-D arrays; each matrix starts at `*_start` and has a row every
    `*_stride` elements. `rows`, a multiple of `group_size`, and `depth`, the number of k, may
    vary; `columns` and `group_size` are constants of the compiled code.

    The b of the product that comes next, with the same stride, is asked from memory meanwhile: a
    line with each row, since a burst of requests is dropped. Products of many rows do without.
    """
    literals = types.IntegerLiteral
    if not (isinstance(columns, literals) and isinstance(group_size, literals)):
        return None
    cut = tiling(columns.literal_value, group_size.literal_value)
    index = types.intp
    signature = types.void(
        out, index, index, a, index, index, b, index, index, next_b, index,
        index, index, columns, group_size,
    )  # fmt: skip

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def matrix(position: int, stride: Any) -> Matrix:
            return matrix_at(context, builder, signature, args, position, stride)

        operands = matrix(0, args[2]), matrix(3, args[5]), matrix(6, args[8])
        ahead = matrix(9, args[8])
        rows, depth = args[11], args[12]
        big_tile = _Tile(builder, cut.big_rows, cut.columns)
        small_tile = _Tile(builder, cut.small_rows, cut.columns)
        big, small = constant(cut.big_rows), constant(cut.small_rows)
        big_end = builder.sub(rows, builder.urem(rows, big))
        for column in range(0, columns.literal_value, cut.columns):
            with cgutils.for_range_slice(builder, constant(0), big_end, big) as (row, _):
                big_tile.emit(*operands, None, row, column, depth)
            with cgutils.for_range_slice(builder, big_end, rows, small) as (row, _):
                small_tile.emit(*operands, ahead, row, column, depth)
        return context.get_dummy_value()

    return signature, emit


class _Tile:
    """Emits the instructions of one tile."""

    def __init__(self, builder: Any, rows: int, columns: int) -> None:
        self.builder = builder
        self.rows = range(rows)
        self.vectors = [ir.VectorType(_F32, width) for width in vector_widths(columns)]

    def emit(
        self,
        out: Matrix,
        a: Matrix,
        b: Matrix,
        ahead: Matrix | None,
        row: Any,
        column: int,
        depth: Any,
    ) -> None:
        builder = self.builder
        out_rows = [self._pieces(out.row(builder, row, r), column) for r in self.rows]
        a_rows = [a.row(builder, row, r) for r in self.rows]
        # Cells on the stack, which LLVM turns into registers.
        sums = [
            [cgutils.alloca_once_value(builder, load_float(builder, *piece)) for piece in pieces]
            for pieces in out_rows
        ]
        load = load_bfloat16 if b.dtype == types.uint16 else load_float
        with cgutils.for_range(builder, depth) as loop:
            pieces = self._pieces(b.row(builder, loop.index, 0), column)
            values = [load(builder, *piece) for piece in pieces]
            if ahead is not None:
                self._prefetch(ahead, loop.index, column)
            for a_row, cells in zip(a_rows, sums, strict=True):
                factor = builder.load(builder.gep(a_row, [loop.index]))
                for cell, value in zip(cells, values, strict=True):
                    total = fma(builder, spread(builder, factor, value.type), value, cell)
                    builder.store(total, cell)
        for pieces, cells in zip(out_rows, sums, strict=True):
            for (source, vector), cell in zip(pieces, cells, strict=True):
                target = builder.bitcast(source, vector.as_pointer())
                builder.store(builder.load(cell), target, align=4)

    def _prefetch(self, matrix: Matrix, index: Any, column: int) -> None:
        row = matrix.row(self.builder, index, 0)
        per_line = _LINE_BYTES * 8 // matrix.dtype.bitwidth
        for offset in range(0, sum(vector.count for vector in self.vectors), per_line):
            prefetch(self.builder, self.builder.gep(row, [constant(column + offset)]))

    def _pieces(self, row: Any, column: int) -> list[tuple[Any, Any]]:
        """The vectors of a row from `column` on: pointers to their first, and their types."""
        pieces = []
        for vector in self.vectors:
            pieces.append((self.builder.gep(row, [constant(column)]), vector))
            column += vector.count
        return pieces
