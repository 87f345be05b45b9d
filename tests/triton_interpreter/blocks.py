"""Tensors of kernels: a type says what one program has, and numbers lie as `[programs, *shape]`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

Shape = tuple[int, ...]

BLOCKS: dict[tuple[str, Shape], Any] = {}
"""Types of blocks, by the names of what they are blocks of, and their shapes."""
ALIKE: dict[tuple[str, Shape], dict[str, Any]] = {}
"""What tensors of one type and shape have in common, by the same."""
CASTS = {
    "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "fp16", "fp32"
}  # fmt: skip
"""Types that become another of them as NumPy's do, but for int1."""

shape_of = cache(np.broadcast_shapes)
dtype_of_any: Any = interpreter._get_np_dtype
dtype_of_numbers = cache(dtype_of_any)


def numpy_dtype(kind: Any) -> Any:
    scalar = kind.scalar
    return dtype_of_any(scalar) if scalar.is_ptr() else dtype_of_numbers(scalar)


def block_of(kind: Any, shape: Shape) -> Any:
    """The type of a block, or of a number where there is no shape."""
    if not shape:
        return kind
    key = kind.name, shape
    if key not in BLOCKS:
        BLOCKS[key] = core.block_type(kind, list(shape))
    return BLOCKS[key]


def tensor_of(data: Any, kind: Any) -> Any:
    """A tensor of numbers: [programs, *shape]."""
    key = kind.name, data.shape[1:]
    if key not in ALIKE:
        made = core.tensor(None, block_of(kind, data.shape[1:]))
        ALIKE[key] = {name: value for name, value in vars(made).items() if name != "handle"}
    tensor: Any = object.__new__(core.tensor)
    vars(tensor).update(ALIKE[key], handle=TensorHandle(data, kind))
    return tensor


def lengths_of(given: Any) -> Shape:
    """The shape that one program has of a tensor."""
    lengths: Shape = given.type.lengths if given.type.is_block() else ()
    return lengths


def aligned(data: Any, rank: int) -> Any:
    """Numbers of blocks of fewer axes, for an operation with such as have so many."""
    missing = rank + 1 - data.ndim
    if missing <= 0:
        return data
    return data.reshape((len(data), *(1,) * missing, *data.shape[1:]))


def level(left: Any, right: Any) -> tuple[Any, Any]:
    """Two operands, where one is of fewer axes; plain numbers of Python's have none."""
    if left.ndim != right.ndim and left.ndim and right.ndim:
        rank = max(left.ndim, right.ndim) - 1
        return aligned(left, rank), aligned(right, rank)
    return left, right


def stretched(data: Any, shape: Shape) -> Any:
    """Numbers as blocks of that shape."""
    data = aligned(data, len(shape))
    return data if data.shape[1:] == shape else np.broadcast_to(data, (len(data), *shape))


def keep_numbers() -> None:
    """Make a tensor of each number that kernels name once, and compare no dtype with itself."""
    new_constant: Any = TritonSemantic.scalar_constant
    constants: dict[tuple[type, Any, str], Any] = {}

    def constant(self: Any, value: Any, dtype: Any) -> Any:
        key = type(value), value, dtype.name
        if key not in constants:
            constants[key] = new_constant(self, value, dtype)
        return constants[key]

    equal: Any = core.dtype.__eq__

    def is_the_same(self: Any, other: Any) -> Any:
        if isinstance(other, core.dtype):
            return self is other or self.name == other.name
        return equal(self, other)

    cast: Any = TritonSemantic.cast

    def as_type(self: Any, given: Any, kind: Any, rounding: Any = None) -> Any:
        old, new = given.type.scalar, kind.scalar
        if old is new:
            return given
        if rounding is None and old.name in CASTS and new.name in CASTS and new.name != "int1":
            return tensor_of(given.handle.data.astype(numpy_dtype(new)), new)
        return cast(self, given, kind, rounding)

    TritonSemantic.scalar_constant = constant
    TritonSemantic.cast = as_type
    core.dtype.__eq__ = is_the_same


def keep_types() -> None:
    """Work out a block's type once for each shape and dtype, and a tensor's shape once for each.

    A type has its lengths as numbers too: Triton's own tuples wrap each to compare it.
    """
    new_type: Any = core.block_type.__init__
    types: dict[Any, dict[str, Any]] = {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        lengths = tuple([getattr(each, "value", each) for each in shape])
        key = element_ty.name, lengths
        if key not in types:
            new_type(self, element_ty, shape)
            types[key] = {**vars(self), "lengths": lengths}
        vars(self).update(types[key])

    new_tensor: Any = core.tensor.__init__
    shapes: dict[str, tuple[Any, Any]] = {}

    def tensor(self: Any, handle: Any, type: Any) -> None:
        name = type.name if type.is_block() else ""
        if name not in shapes:
            new_tensor(self, handle, type)
            shapes[name] = (self.shape, self.numel)
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[name]

    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor


def handle(self: TensorHandle, data: Any, dtype: Any, attr: dict[str, Any] | None = None) -> None:
    """A new one; what Triton's own does in six steps."""
    bits = data.itemsize * 8
    if bits > 8 and bits > getattr(dtype, "primitive_bitwidth", 64):  # pointers have no such name
        raise ValueError(f"numbers of {bits} bits for {dtype}")
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr


def patch() -> None:
    interpreter._get_np_dtype = numpy_dtype
    keep_types()
    keep_numbers()
    TensorHandle.__init__ = handle
