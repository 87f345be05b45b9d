"""How Triton's interpreter takes two operands in tests: by NumPy, which needs few steps for it.

The interpreter broadcasts by further operations of its language, dimension by dimension, and checks
by six more whether a result fits its type; what they find it drops unless a kernel is debugged.
Here what does not fit fails, in lanes that are masked later too.

To be imported by `triton_device` alone, which has chosen the interpreter.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

Shape = tuple[int, ...]

EXACT = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
TYPES: dict[tuple[str, Shape], Any] = {}
"""Of blocks, by the names of what they are blocks of, and their shapes."""

shape_of = cache(np.broadcast_shapes)
with_casts = TritonSemantic.binary_op_type_checking_impl


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
    found = EXACT[name](lhs.handle.data, rhs.handle.data, dtype=np.int64)
    limits = np.iinfo(lhs.handle.data.dtype)
    fits = limits.min <= found.min() and found.max() <= limits.max
    assert fits, f"{name} overflows {limits.dtype}"


def patch() -> None:
    """Have the interpreter do so."""
    TritonSemantic.broadcast_impl_value = broadcast
    TritonSemantic.binary_op_type_checking_impl = operands
    TritonSemantic.binary_op_sanitize_overflow_impl = require_fit
