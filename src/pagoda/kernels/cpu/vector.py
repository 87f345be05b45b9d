"""Vector code that a compiler would not find by itself, written straight into LLVM's language.

Functions marked `emitted` are for kernels; the others emit instructions and are for those.
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
    return _reduction(array, add)


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
        return combine_lanes(builder, builder.load(cell), combine)

    return float32(array), emit


@emitted
def take_number(typing: Any, counter: Any) -> Any:
    """counter[0], an int64, which is one higher afterwards; no two threads get the same."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, constant(1), "monotonic")

    return types.int64(counter), emit


class Matrix(NamedTuple):
    """A matrix in memory, while code for it is emitted."""

    start: Any
    stride: Any
    """From row to row, in elements."""
    dtype: Any

    def row(self, builder: Any, first: Any, index: int) -> Any:
        """Pointer to row first + index."""
        row = builder.add(first, constant(index))
        return builder.gep(self.start, [builder.mul(row, self.stride)])


def matrix_at(
    context: Any, builder: Any, signature: Any, args: Any, position: int, stride: Any
) -> Matrix:
    """The matrix in the array that is argument `position`, from the element that is the next."""
    kind = signature.args[position]
    array = context.make_array(kind)(context, builder, args[position])
    return Matrix(builder.gep(array.data, [args[position + 1]]), stride, kind.dtype)


def constant(value: int) -> Any:
    """An index."""
    return ir.Constant(_INDEX, value)


def prefetch(builder: Any, pointer: Any) -> None:
    """Ask for the cache line that the pointer is in, ahead of use; it may point anywhere."""
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, keep, data_cache = (ir.Constant(_I32, value) for value in (0, 3, 1))
    address = builder.bitcast(pointer, cgutils.voidptr_t)
    builder.call(function, [address, read, keep, data_cache])


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


def add(builder: Any, x: Any, y: Any) -> Any:
    """x + y."""
    return builder.fadd(x, y)


def combine_lanes(builder: Any, value: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """One number from a vector whose lanes are a power of two: halves with halves."""
    width = value.type.count // 2
    while width:
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(_I32, width), part))
            for part in (list(range(width)), list(range(width, 2 * width)))
        )
        value = combine(builder, low, high)
        width //= 2
    return builder.extract_element(value, ir.Constant(_I32, 0))
