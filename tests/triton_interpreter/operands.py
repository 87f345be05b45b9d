"""How the interpreter takes operands: by NumPy, which needs few steps for it.

Triton's own broadcasts by further operations of its language, dimension by dimension, and checks
by six more whether a result fits its type; what they find it drops unless a kernel is debugged.
Here what does not fit fails, in lanes that are masked later too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

from triton_interpreter.blocks import (
    aligned,
    block_of,
    lengths_of,
    level,
    shape_of,
    stretched,
    tensor_of,
)

ARITHMETIC: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
"""Of numbers that may grow too large."""
COMPARISONS: dict[str, Any] = {
    "less_than": np.less, "less_equal": np.less_equal, "greater_than": np.greater,
    "greater_equal": np.greater_equal, "equal": np.equal, "not_equal": np.not_equal,
}  # fmt: skip
OF_BITS: dict[str, Any] = {"and_": np.bitwise_and, "or_": np.bitwise_or, "xor_": np.bitwise_xor,
           "shl": np.left_shift, "ashr": np.right_shift}  # fmt: skip
OTHERS: dict[str, Any] = {"minimum": np.minimum, "maximum": np.maximum}
WHOLE = {"int32": np.int32, "int64": np.int64}
"""Types whose numbers are NumPy's own, by their names."""
FLOATS = {"fp32": np.float32}
PLAIN = {**FLOATS, **WHOLE}
BITS = {"int1": np.bool_, **WHOLE}
NUMBERS = {"fp32": (int, float), "int32": (int,), "int64": (int,)}
"""What of Python's meets them without changing their type."""

with_casts = TritonSemantic.binary_op_type_checking_impl
of_either = TritonSemantic.where


def broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    shape = shape_of(lengths_of(lhs), lengths_of(rhs))
    left, right = (stretched(given.handle.data, shape) for given in (lhs, rhs))
    return tensor_of(left, lhs.dtype), tensor_of(right, rhs.dtype)


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
    left, right = lengths_of(lhs), lengths_of(rhs)
    if left == right:
        return lhs, rhs
    shape = shape_of(left, right)
    first, second = (aligned(each.handle.data, len(shape)) for each in (lhs, rhs))
    return (
        self.tensor(TensorHandle(first, lhs.dtype), block_of(lhs.dtype, shape)),
        self.tensor(TensorHandle(second, rhs.dtype), rhs.type),
    )


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
    steps = plain(places, getattr(places, "dtype", core.int32), WHOLE) if kind.is_ptr() else None
    if steps is None:
        return sum_of(self, pointer, places, sanitize_overflow)
    size = max(1, kind.element_ty.primitive_bitwidth // 8)
    here, steps = level(pointer.handle.data, steps)
    return tensor_of(here + np.multiply(steps, size, dtype=np.int64).view(np.uint64), kind)


def kind_of(lhs: Any, rhs: Any) -> Any:
    """The type that two operands meet in, where one is a plain number or both are whole."""
    if not isinstance(lhs, core.tensor):
        return rhs.dtype
    if not isinstance(rhs, core.tensor) or lhs.dtype is rhs.dtype:
        return lhs.dtype
    return core.int64 if lhs.dtype.name in WHOLE and rhs.dtype.name in WHOLE else core.void


def arithmetic(name: str) -> Any:
    """An operation of numbers of one plain type in a single step; of others, as it was."""
    of_any, operation = getattr(TritonSemantic, name), ARITHMETIC[name]

    def run(self: Any, lhs: Any, rhs: Any, sanitize_overflow: bool) -> Any:
        kind = kind_of(lhs, rhs)
        left, right = plain(lhs, kind), plain(rhs, kind)
        if left is None or right is None:
            return of_any(self, lhs, rhs, sanitize_overflow)
        left, right = level(left, right)
        if kind.name == "int32" and sanitize_overflow:
            return tensor_of(fitting(operation(left, right, dtype=np.int64), np.int32, name), kind)
        return tensor_of(operation(left, right), kind)

    run.__name__ = name
    return run


def in_one_step(name: str, operation: Any, types: dict[str, Any], becomes: Any = None) -> Any:
    """Likewise, of operations that leave a type's numbers within it, or give another type."""
    of_any = getattr(TritonSemantic, name)

    def run(self: Any, lhs: Any, rhs: Any, *others: Any) -> Any:
        kind = kind_of(lhs, rhs)
        left, right = plain(lhs, kind, types), plain(rhs, kind, types)
        if left is None or right is None:
            return of_any(self, lhs, rhs, *others)
        return tensor_of(operation(*level(left, right)), becomes or kind)

    return run


def quotient(left: Any, right: Any) -> Any:
    """Of whole numbers, rounded towards 0."""
    return (left - np.fmod(left, right)) // right


def where(self: Any, condition: Any, x: Any, y: Any) -> Any:
    """Likewise, of either of two."""
    are_numbers = not isinstance(x, core.tensor) and not isinstance(y, core.tensor)
    kind = self.to_tensor(x).dtype if are_numbers else kind_of(x, y)
    left, right = plain(x, kind), plain(y, kind)
    if left is None or right is None or condition.dtype is not core.int1:
        return of_either(self, condition, x, y)
    chosen = condition.handle.data
    rank = max(chosen.ndim, left.ndim, right.ndim) - 1
    left, right = (aligned(each, rank) if each.ndim else each for each in (left, right))
    return tensor_of(np.where(aligned(chosen, rank), left, right), kind)


def plain(given: Any, kind: Any, types: dict[str, Any] = PLAIN) -> Any:
    """Its numbers, where they are of that type, which is one of these, or fit it; else none."""
    name = kind.name
    if name not in types:
        return None
    if isinstance(given, core.tensor):
        fits = given.dtype is kind or (name == "int64" and given.dtype is core.int32)
        return given.handle.data if fits else None
    if type(given) in NUMBERS.get(name, ()) and (abs(given) < 2**31 or math.isinf(given)):
        return types[name](given)
    return None


sum_of = arithmetic("add")


def patch() -> None:
    TritonSemantic.broadcast_impl_value = broadcast
    TritonSemantic.binary_op_type_checking_impl = operands
    TritonSemantic.binary_op_sanitize_overflow_impl = require_fit
    moved.__name__ = "add"  # as it is told where numbers do not fit
    TritonSemantic.add = moved
    for name in ("sub", "mul"):
        setattr(TritonSemantic, name, arithmetic(name))
    for name, operation in COMPARISONS.items():
        setattr(TritonSemantic, name, in_one_step(name, operation, PLAIN, core.int1))
    for name, operation in OF_BITS.items():
        setattr(TritonSemantic, name, in_one_step(name, operation, BITS))
    for name, operation in OTHERS.items():
        setattr(TritonSemantic, name, in_one_step(name, operation, PLAIN))
    TritonSemantic.truediv = in_one_step("truediv", np.divide, FLOATS)
    TritonSemantic.floordiv = in_one_step("floordiv", quotient, WHOLE)
    TritonSemantic.mod = in_one_step("mod", np.fmod, WHOLE)
    TritonSemantic.where = where
