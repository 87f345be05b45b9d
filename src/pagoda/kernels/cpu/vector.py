"""Vector code that a compiler would not find by itself, written straight into LLVM's language.

The heart is a small matrix product that keeps its result in registers:

    out[r, c] += Σ_k a[r, k] · b[k, c]     in order of k, one fused multiply-add each

b is float32 or bfloat16 (as uint16), all else float32. The order of each sum is the order of k
however a product is cut into tiles, so a result's bits depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba import float32, types
from numba.core import cgutils

from pagoda.kernels.cpu.number import emitted

_I32, _INDEX, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """What tiles are cut for."""

    lanes: int
    """float32 values in a register."""
    accumulators: int
    """Registers for sums; the others hold what is read."""
    vectors: int
    """Most registers across a tile."""


def _host_unit() -> VectorUnit:
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return VectorUnit(lanes=16, accumulators=24, vectors=4)
    if features.get("avx"):
        return VectorUnit(lanes=8, accumulators=12, vectors=3)
    return VectorUnit(lanes=4, accumulators=24, vectors=4)


UNIT = _host_unit()


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
    rows: Any, depth: Any, columns: Any, group_size: Any,
) -> Any:  # fmt: skip
    """out += a · b; see the module. For kernels only.

    out, a, b: contiguous 1-D arrays; each matrix starts at `*_start` and has a row every
    `*_stride` elements. `rows`, a multiple of `group_size`, and `depth`, the number of k, may
    vary; `columns` and `group_size` are constants of the compiled code.
    """
    literals = types.IntegerLiteral
    if not (isinstance(columns, literals) and isinstance(group_size, literals)):
        return None
    cut = tiling(columns.literal_value, group_size.literal_value)
    index = types.intp
    signature = types.void(
        out, index, index, a, index, index, b, index, index, index, index, columns, group_size
    )

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def matrix(position: int) -> _Matrix:
            array = context.make_array(signature.args[position])(context, builder, args[position])
            start = builder.gep(array.data, [args[position + 1]])
            return _Matrix(start, args[position + 2], signature.args[position].dtype)

        operands = matrix(0), matrix(3), matrix(6)
        rows, depth = args[9], args[10]
        for column in range(0, columns.literal_value, cut.columns):
            big = _constant(cut.big_rows)
            big_end = builder.sub(rows, builder.urem(rows, big))
            with cgutils.for_range_slice(builder, _constant(0), big_end, big) as (row, _):
                _Tile(builder, cut.big_rows, cut.columns).emit(*operands, row, column, depth)
            small = _constant(cut.small_rows)
            with cgutils.for_range_slice(builder, big_end, rows, small) as (row, _):
                _Tile(builder, cut.small_rows, cut.columns).emit(*operands, row, column, depth)
        return context.get_dummy_value()

    return signature, emit


class _Matrix(NamedTuple):
    """A matrix in memory, while code for it is emitted."""

    start: Any
    stride: Any
    dtype: Any


def _constant(value: int) -> Any:
    return ir.Constant(_INDEX, value)


class _Tile:
    """Emits the instructions of one tile."""

    def __init__(self, builder: Any, rows: int, columns: int) -> None:
        self.builder = builder
        self.rows = range(rows)
        self.vectors = [ir.VectorType(_F32, width) for width in vector_widths(columns)]

    def emit(self, out: _Matrix, a: _Matrix, b: _Matrix, row: Any, column: int, depth: Any) -> None:
        builder = self.builder
        out_rows = [self._pieces(self._row(out, row, r), column) for r in self.rows]
        a_rows = [self._row(a, row, r) for r in self.rows]
        # Cells on the stack, which LLVM turns into registers.
        sums = [
            [cgutils.alloca_once_value(builder, load_float(builder, *piece)) for piece in pieces]
            for pieces in out_rows
        ]
        load = load_bfloat16 if b.dtype == types.uint16 else load_float
        with cgutils.for_range(builder, depth) as loop:
            pieces = self._pieces(self._row(b, loop.index, 0), column)
            values = [load(builder, *piece) for piece in pieces]
            for a_row, cells in zip(a_rows, sums, strict=True):
                factor = builder.load(builder.gep(a_row, [loop.index]))
                for cell, value in zip(cells, values, strict=True):
                    total = fma(builder, spread(builder, factor, value.type), value, cell)
                    builder.store(total, cell)
        for pieces, cells in zip(out_rows, sums, strict=True):
            for (source, vector), cell in zip(pieces, cells, strict=True):
                target = builder.bitcast(source, vector.as_pointer())
                builder.store(builder.load(cell), target, align=4)

    def _row(self, matrix: _Matrix, first: Any, index: int) -> Any:
        row = self.builder.add(first, _constant(index))
        return self.builder.gep(matrix.start, [self.builder.mul(row, matrix.stride)])

    def _pieces(self, row: Any, column: int) -> list[tuple[Any, Any]]:
        """The vectors of a row from `column` on: pointers to their first, and their types."""
        pieces = []
        for vector in self.vectors:
            pieces.append((self.builder.gep(row, [_constant(column)]), vector))
            column += vector.count
        return pieces


@emitted
def lanes_max(typing: Any, array: Any) -> Any:
    """Largest value of a contiguous float32 array of 16 or 32 or 48 … values. For kernels only."""

    def pick(builder: Any, x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", x, y), x, y)

    return _reduction(array, pick)


@emitted
def lanes_sum(typing: Any, array: Any) -> Any:
    """Sum of a contiguous float32 array of 16 or 32 or 48 … values. For kernels only.

    Lane by lane first, then the lanes in pairs: sixteen more zeros leave the bits as they are.
    """
    return _reduction(array, lambda builder, x, y: builder.fadd(x, y))


def _reduction(array: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    vector = ir.VectorType(_F32, 16)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        operand = context.make_array(signature.args[0])(context, builder, args[0])
        base, count = operand.data, builder.extract_value(operand.shape, 0)
        cell = cgutils.alloca_once_value(builder, load_float(builder, base, vector))
        sixteen = ir.Constant(_INDEX, 16)
        with cgutils.for_range_slice(builder, sixteen, count, sixteen) as (position, _):
            read = load_float(builder, builder.gep(base, [position]), vector)
            builder.store(combine(builder, builder.load(cell), read), cell)
        value = builder.load(cell)
        for width in (8, 4, 2, 1):
            low, high = (
                builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(_I32, width), part))
                for part in (list(range(width)), list(range(width, 2 * width)))
            )
            value = combine(builder, low, high)
        return builder.extract_element(value, ir.Constant(_I32, 0))

    return float32(array), emit


@emitted
def take_number(typing: Any, counter: Any) -> Any:
    """counter[0], an int64, which is one higher afterwards; no two threads get the same."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, _constant(1), "monotonic")

    return types.int64(counter), emit


@emitted
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of array[index] ahead of use; the index may lie outside."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data_cache = (ir.Constant(_I32, value) for value in (0, 3, 1))
        builder.call(function, [address, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


def load_float(builder: Any, source: Any, vector: Any) -> Any:
    """A vector of float32 from a pointer to its first."""
    return builder.load(builder.bitcast(source, vector.as_pointer()), align=4)


def load_bfloat16(builder: Any, source: Any, vector: Any) -> Any:
    """A vector of bfloat16 as float32: its bits are the upper half."""
    bits = ir.VectorType(ir.IntType(16), vector.count)
    wide = ir.VectorType(_I32, vector.count)
    read = builder.load(builder.bitcast(source, bits.as_pointer()), align=2)
    shifted = builder.shl(builder.zext(read, wide), ir.Constant(wide, [16] * vector.count))
    return builder.bitcast(shifted, vector)


def spread(builder: Any, value: Any, vector: Any) -> Any:
    """A vector with the value in every lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    lanes = ir.Constant(ir.VectorType(_I32, vector.count), None)
    return builder.shuffle_vector(one, nothing, lanes)


def fma(builder: Any, x: Any, y: Any, cell: Any) -> Any:
    """x · y + what the cell holds, rounded once."""
    kind = ir.FunctionType(x.type, [x.type] * 3)
    name = f"llvm.fma.v{x.type.count}f32"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [x, y, builder.load(cell)])
