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
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

Shape = tuple[int, ...]

ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
PLAIN = {"fp32": np.float32, "int32": np.int32, "int64": np.int64}
"""Types whose numbers are NumPy's own, by their names."""
NUMBERS = {"fp32": (int, float), "int32": (int,), "int64": (int,)}
"""What of Python's meets them without changing their type."""
TYPES: dict[tuple[str, Shape], Any] = {}
"""Of blocks, by the names of what they are blocks of, and their shapes."""

shape_of = cache(np.broadcast_shapes)
with_casts = TritonSemantic.binary_op_type_checking_impl
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
            with np.errstate(over="ignore"):  # a float becomes infinite, as on a device
                found = operation(left, right)
        lengths = [lengths_of(each) for each in (lhs, rhs) if isinstance(each, core.tensor)]
        shape = lengths[0] if lengths[0] == lengths[-1] else shape_of(*lengths)
        type_ = block_of(kind, shape) if shape else kind
        return self.tensor(TensorHandle(found, kind), type_)

    run.__name__ = name
    return run


def plain(given: Any, kind: Any) -> Any:
    """Its numbers, where it has some of that type, which is a plain one; else none."""
    name = kind.name
    if isinstance(given, core.tensor):
        return given.handle.data if given.dtype is kind and name in PLAIN else None
    if name in PLAIN and type(given) in NUMBERS[name] and abs(given) < 2**31:
        return PLAIN[name](given)
    return None


def handle(self: TensorHandle, data: Any, dtype: Any, attr: dict[str, Any] | None = None) -> None:
    """A new one; what Triton's own does in six steps."""
    bits = data.itemsize * 8
    if bits > 8 and bits > getattr(dtype, "primitive_bitwidth", 64):  # pointers have no such name
        raise ValueError(f"numbers of {bits} bits for {dtype}")
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr


def expand(self: Any, given: Any, axis: int) -> Any:
    shape = given.data.shape
    data = given.data.reshape((*shape[:axis], 1, *shape[axis:]))
    return TensorHandle(data, given.dtype.scalar)


def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> TensorHandle:
    """Summed in float64 and rounded once.

    Sums of float32 by NumPy's BLAS depend on the CPU and on where in a tile a row lies: a row of a
    GPU's product depends on neither.
    """
    if any(each.dtype.is_floating() and each.dtype.primitive_bitwidth == 8 for each in (a, b)):
        return of_eight_bits(self, a, b, d, precision, imprecise)
    product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
    return TensorHandle((product + d.data).astype(d.data.dtype), d.dtype.scalar)


def patch() -> None:
    """Have the interpreter do so."""
    TritonSemantic.broadcast_impl_value = broadcast
    TritonSemantic.binary_op_type_checking_impl = operands
    TritonSemantic.binary_op_sanitize_overflow_impl = require_fit
    for name in ARITHMETIC:
        setattr(TritonSemantic, name, arithmetic(name))
    TensorHandle.__init__ = handle
    InterpreterBuilder.create_expand_dims = expand
    InterpreterBuilder.create_dot = dot
