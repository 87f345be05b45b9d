"""What changes a block's shape, and what reduces it: of all programs at once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from triton import language
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from triton_interpreter.blocks import Shape, aligned, lengths_of, numpy_dtype, stretched, tensor_of
from triton_interpreter.operands import fitting

REDUCTIONS: dict[str, Any] = {"_sum_combine": np.sum, "_elementwise_max": np.fmax.reduce,
              "_elementwise_min": np.fmin.reduce}  # fmt: skip
"""By the names of what combines two numbers; a maximum is a number where there is one."""
SCANS: dict[str, Any] = {"_sum_combine": np.cumsum}
NOT_OF_MANY = (
    "create_cat", "create_join", "create_split", "create_unsplat", "create_histogram",
    "create_gather", "create_atomic_cas", "create_atomic_rmw", "create_make_block_ptr",
    "create_make_tensor_descriptor",
)  # fmt: skip
"""What no kernel uses: none of it knows the axis of programs."""

of_eight_bits = InterpreterBuilder.create_dot


@cache
def numbers_from(start: int, end: int) -> Any:
    if not 0 < end - start == 1 << (end - start).bit_length() - 1:
        raise ValueError(f"arange: {end - start} is no power of 2")
    return tensor_of(np.arange(start, end, dtype=np.int32)[None], core.int32)


def arange(self: Any, start: int, end: int) -> Any:
    return numbers_from(start, end)


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
    data = given.handle.data
    return tensor_of(data.reshape((len(data), *shape)), given.type.scalar)


def reduced(given: Any, axis: Any, combine: Any, keep_dims: Any = False, **_: Any) -> Any:
    """One number of all along an axis, or of a whole block."""
    along, keeps = (getattr(each, "value", each) for each in (axis, keep_dims))
    data, kind = given.handle.data, given.type.scalar
    axes = tuple(range(1, data.ndim)) if along is None else own_axis(data, along)
    found = REDUCTIONS[combine.__name__](data, axis=axes, keepdims=bool(keeps))
    return tensor_of(as_kind(found, kind, combine), kind)


def scanned(given: Any, axis: Any, combine: Any, reverse: Any = False, **_: Any) -> Any:
    """What each number makes together with those before it."""
    assert not getattr(reverse, "value", reverse)
    data, kind = given.handle.data, given.type.scalar
    found = SCANS[combine.__name__](data, axis=own_axis(data, getattr(axis, "value", axis)))
    return tensor_of(as_kind(found, kind, combine), kind)


def as_kind(found: Any, kind: Any, combine: Any) -> Any:
    """Whole numbers that do not fit are an error."""
    dtype = numpy_dtype(kind)
    return fitting(found, dtype, combine.__name__) if kind.is_int() else found.astype(dtype)


def own_axis(data: Any, axis: int) -> int:
    """Which it is behind the axis of programs."""
    rank = data.ndim - 1
    assert -rank <= axis < rank, f"axis {axis} of {rank}"
    return axis % rank + 1


class Shapes:
    """What the interpreter's builder does with blocks: handles in, handles out."""

    def create_splat(self, kind: Any, given: Any) -> Any:
        data = aligned(given.data, len(kind.lengths))
        return TensorHandle(np.full((len(data), *kind.lengths), data), given.dtype.scalar)

    def create_broadcast(self, given: Any, shape: Any) -> Any:
        return TensorHandle(stretched(given.data, tuple(shape)), given.dtype.scalar)

    def create_expand_dims(self, given: Any, axis: int) -> Any:
        return TensorHandle(np.expand_dims(given.data, axis + 1), given.dtype.scalar)

    def create_reshape(self, given: Any, shape: Any, reorders: bool) -> Any:
        return TensorHandle(given.data.reshape((len(given.data), *shape)), given.dtype.scalar)

    def create_trans(self, given: Any, order: Any) -> Any:
        axes = (0, *(axis + 1 for axis in order))
        return TensorHandle(np.transpose(given.data, axes), given.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        """Summed in float64 and rounded once.

        Sums of float32 by NumPy's BLAS depend on the CPU and on where in a tile a row lies: a row
        of a GPU's product depends on neither.
        """
        if any(each.dtype.is_floating() and each.dtype.primitive_bitwidth == 8 for each in (a, b)):
            return of_eight_bits(self, a, b, d, precision, imprecise)
        if "bf16" in (a.dtype.scalar.name, b.dtype.scalar.name):
            raise TypeError("bfloat16 lies here as its bits: a kernel of tests takes float16")
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
        return TensorHandle((product + d.data).astype(d.data.dtype), d.dtype.scalar)


def patch() -> None:
    for name, function in vars(Shapes).items():
        if name.startswith("create_"):
            setattr(InterpreterBuilder, name, function)
    for name in NOT_OF_MANY:
        setattr(InterpreterBuilder, name, not_of_many(name))
    TritonSemantic.arange = arange
    TritonSemantic.expand_dims = expand_dims
    for package in (language, core):
        package.reduce, package.associative_scan = reduced, scanned


def not_of_many(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name}: write it for all programs at once")

    return refuse
