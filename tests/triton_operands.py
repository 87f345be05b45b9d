"""How Triton's interpreter takes two operands in tests: by NumPy, which needs few steps for it.

The interpreter broadcasts by further operations of its language, dimension by dimension, and checks
by six more whether a result fits its type; what they find it drops unless a kernel is debugged.
Here what does not fit fails, in lanes that are masked later too.

To be imported by `triton_device` alone, which has chosen the interpreter.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

Shape = tuple[int, ...]

ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
COMPARISONS = {
    "less_than": np.less, "less_equal": np.less_equal, "greater_than": np.greater,
    "greater_equal": np.greater_equal, "equal": np.equal, "not_equal": np.not_equal,
}  # fmt: skip
OF_BITS = {"and_": np.bitwise_and, "or_": np.bitwise_or, "xor_": np.bitwise_xor}
PLAIN = {"fp32": np.float32, "int32": np.int32, "int64": np.int64}
"""Types whose numbers are NumPy's own, by their names."""
BITS = {"int1": np.bool_, "int32": np.int32, "int64": np.int64}
"""Likewise, of bits."""
NUMBERS = {"fp32": (int, float), "int32": (int,), "int64": (int,)}
"""What of Python's meets them without changing their type."""
TYPES: dict[tuple[str, Shape], Any] = {}
"""Of blocks, by the names of what they are blocks of, and their shapes."""

shape_of = cache(np.broadcast_shapes)
with_casts = TritonSemantic.binary_op_type_checking_impl
of_either = TritonSemantic.where
of_all_programs = GridExecutor.__call__
of_eight_bits = InterpreterBuilder.create_dot


def block_of(kind: Any, shape: Shape) -> Any:
    key = kind.name, shape
    if key not in TYPES:
        TYPES[key] = core.block_type(kind, list(shape))
    return TYPES[key]


def lengths_of(given: Any) -> Shape:
    lengths: Shape = given.type.lengths if given.type.is_block() else ()
    return lengths


def shape_of_pair(lhs: Any, rhs: Any) -> Shape:
    left, right = lengths_of(lhs), lengths_of(rhs)
    return left if left == right else shape_of(left, right)


def stretched(semantic: Any, given: Any, shape: Shape) -> Any:
    handle = given.handle
    if handle.data.shape == shape or shape == ():
        return given
    data = np.broadcast_to(handle.data, shape)
    return semantic.tensor(TensorHandle(data, handle.dtype.scalar), block_of(given.dtype, shape))


def broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    shape = shape_of_pair(lhs, rhs)
    return stretched(self, lhs, shape), stretched(self, rhs, shape)


def need_no_casts(lhs: Any, rhs: Any, lhs_ptr: bool, div_or_mod: bool) -> bool:
    if not (isinstance(lhs, core.tensor) and isinstance(rhs, core.tensor)):
        return False
    left, right = lhs.dtype, rhs.dtype
    if left.is_ptr():
        return bool(lhs_ptr and right.is_int())
    return left is right and not div_or_mod


def operands(
    self: Any, lhs: Any, rhs: Any, lhs_ptr: bool = False, rhs_ptr: bool = False,
    arithmetic_check: bool = True, div_or_mod: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Of most operations: NumPy stretches their numbers as it computes, and the result has the type
    of what is left of it."""
    if not need_no_casts(lhs, rhs, lhs_ptr, div_or_mod):
        pair: tuple[Any, Any] = with_casts(
            self, lhs, rhs, lhs_ptr, rhs_ptr, arithmetic_check, div_or_mod
        )
        return pair
    shape = shape_of_pair(lhs, rhs)
    if lengths_of(lhs) == shape:
        return lhs, rhs
    return self.tensor(lhs.handle, block_of(lhs.dtype, shape)), rhs


def require_fit(self: Any, lhs: Any, rhs: Any, operation: Any) -> None:
    assert lhs.type.scalar == rhs.type.scalar
    if lhs.type.scalar.int_bitwidth in (1, 64):
        return
    name = operation.__name__
    found = ARITHMETIC[name](lhs.handle.data, rhs.handle.data, dtype=np.int64)
    fitting(found, lhs.handle.data.dtype, name)


def fitting(found: Any, dtype: Any, name: str) -> Any:
    """The numbers as that type, which holds all of them."""
    numbers = found.astype(dtype)
    assert (numbers == found).all(), f"{name} overflows {numbers.dtype}"
    return numbers


def moved(self: Any, pointer: Any, places: Any, sanitize_overflow: bool) -> Any:
    """A pointer, or each of some, so many places further on; of numbers, their sum."""
    kind = getattr(pointer, "dtype", core.void)
    steps = plain(places, getattr(places, "dtype", core.int32))
    if not kind.is_ptr() or steps is None or steps.dtype.kind != "i":
        return sum_of(self, pointer, places, sanitize_overflow)
    size = max(1, kind.element_ty.primitive_bitwidth // 8)
    found = pointer.handle.data + size * steps.astype(np.uint64)
    return result(self, found, kind, pointer, places)


def arithmetic(name: str) -> Any:
    """An operation of numbers of one plain type in a single step; of others, as it was."""
    of_any, operation = getattr(TritonSemantic, name), ARITHMETIC[name]

    def run(self: Any, lhs: Any, rhs: Any, sanitize_overflow: bool) -> Any:
        kind = getattr(lhs if isinstance(lhs, core.tensor) else rhs, "dtype", core.void)
        left, right = plain(lhs, kind), plain(rhs, kind)
        if left is None or right is None:
            return of_any(self, lhs, rhs, sanitize_overflow)
        if kind.name == "int32" and sanitize_overflow:
            found = fitting(operation(left, right, dtype=np.int64), np.int32, name)
        else:
            found = operation(left, right)
        return result(self, found, kind, lhs, rhs)

    run.__name__ = name
    return run


def result(self: Any, found: Any, kind: Any, *given: Any) -> Any:
    """Numbers that were computed of others, in the shape that those meet in."""
    lengths = [lengths_of(each) for each in given if isinstance(each, core.tensor)]
    shape = lengths[0]
    if lengths.count(shape) < len(lengths):
        shape = shape_of(*lengths)
    return self.tensor(TensorHandle(found, kind), block_of(kind, shape) if shape else kind)


def comparison(name: str) -> Any:
    """Likewise."""
    of_any, operation = getattr(TritonSemantic, name), COMPARISONS[name]

    def run(self: Any, lhs: Any, rhs: Any) -> Any:
        kind = getattr(lhs if isinstance(lhs, core.tensor) else rhs, "dtype", core.void)
        left, right = plain(lhs, kind), plain(rhs, kind)
        if left is None or right is None:
            return of_any(self, lhs, rhs)
        return result(self, operation(left, right), core.int1, lhs, rhs)

    return run


def of_bits(name: str) -> Any:
    """Likewise."""
    of_any, operation = getattr(TritonSemantic, name), OF_BITS[name]

    def run(self: Any, lhs: Any, rhs: Any) -> Any:
        kind = getattr(lhs if isinstance(lhs, core.tensor) else rhs, "dtype", core.void)
        left, right = plain(lhs, kind, BITS), plain(rhs, kind, BITS)
        if left is None or right is None:
            return of_any(self, lhs, rhs)
        return result(self, operation(left, right), kind, lhs, rhs)

    return run


def where(self: Any, condition: Any, x: Any, y: Any) -> Any:
    """Likewise, of either of two."""
    kind = getattr(x if isinstance(x, core.tensor) else y, "dtype", core.void)
    left, right = plain(x, kind), plain(y, kind)
    if left is None or right is None or condition.dtype is not core.int1:
        return of_either(self, condition, x, y)
    found = np.where(condition.handle.data, left, right)
    return result(self, found, kind, condition, x, y)


def plain(given: Any, kind: Any, types: dict[str, Any] = PLAIN) -> Any:
    """Its numbers, where it has some of that type, which is one of these; else none."""
    name = kind.name
    if name not in types:
        return None
    if isinstance(given, core.tensor):
        return given.handle.data if given.dtype is kind else None
    if type(given) in NUMBERS.get(name, ()) and (abs(given) < 2**31 or math.isinf(given)):
        return types[name](given)
    return None


def handle(self: TensorHandle, data: Any, dtype: Any, attr: dict[str, Any] | None = None) -> None:
    """A new one; what Triton's own does in six steps."""
    bits = data.itemsize * 8
    if bits > 8 and bits > getattr(dtype, "primitive_bitwidth", 64):  # pointers have no such name
        raise ValueError(f"numbers of {bits} bits for {dtype}")
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr


def indexed(self: Any, slices: Any) -> Any:
    """A tensor with new axes, all of them made at once."""
    given = slices if isinstance(slices, tuple) else (slices,)
    lengths = iter(lengths_of(self))
    shape: list[int] = []
    for each in given:
        if each is None:
            shape.append(1)
        elif each == slice(None):
            shape.append(next(lengths))
        else:
            raise ValueError(f"unsupported tensor index: {each}")
    return reshaped(self, (*shape, *lengths))


def expand_dims(semantic: Any, given: Any, axis: int) -> Any:
    lengths = lengths_of(given)
    return reshaped(given, (*lengths[:axis], 1, *lengths[axis:]))


def reshaped(given: Any, shape: Shape) -> Any:
    kind = given.type.scalar
    return core.tensor(TensorHandle(given.handle.data.reshape(shape), kind), block_of(kind, shape))


def run_all(self: GridExecutor, *args: Any, **kwargs: Any) -> None:
    """A float becomes infinite without a word, as on a device."""
    with np.errstate(over="ignore"):
        of_all_programs(self, *args, **kwargs)


def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> TensorHandle:
    """Summed in float64 and rounded once.

    Sums of float32 by NumPy's BLAS depend on the CPU and on where in a tile a row lies: a row of a
    GPU's product depends on neither.
    """
    if any(each.dtype.is_floating() and each.dtype.primitive_bitwidth == 8 for each in (a, b)):
        return of_eight_bits(self, a, b, d, precision, imprecise)
    product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
    return TensorHandle((product + d.data).astype(d.data.dtype), d.dtype.scalar)


sum_of = arithmetic("add")


def patch() -> None:
    """Have the interpreter do so."""
    TritonSemantic.broadcast_impl_value = broadcast
    TritonSemantic.binary_op_type_checking_impl = operands
    TritonSemantic.binary_op_sanitize_overflow_impl = require_fit
    moved.__name__ = "add"  # as it is told where numbers do not fit
    TritonSemantic.add = moved
    for name in ("sub", "mul"):
        setattr(TritonSemantic, name, arithmetic(name))
    for name in COMPARISONS:
        setattr(TritonSemantic, name, comparison(name))
    for name in OF_BITS:
        setattr(TritonSemantic, name, of_bits(name))
    TritonSemantic.where = where
    TritonSemantic.expand_dims = expand_dims
    TensorHandle.__init__ = handle
    GridExecutor.__call__ = run_all
    InterpreterBuilder.create_dot = dot
