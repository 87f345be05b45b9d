"""Where Triton kernels run in tests: on a GPU where there is one, else in Triton's interpreter.

Importing this chooses, and has to come before the first import of triton: the functions of its
language are made for one or the other as they are loaded.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU and os.environ.get("TRITON_INTERPRET") != "1":
    if "triton.language" in sys.modules:
        raise RuntimeError("triton was imported before its interpreter was chosen")
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")


def patch_once_a_launch() -> None:
    """Spare Triton's interpreter what it repeats at every call of a function within a kernel.

    Each time it looks through the whole language for what it replaces, although nothing has
    changed since the launch began, and for each value it makes its table of dtypes and its shape
    anew.
    """
    from triton.runtime import interpreter

    patch_lang: Any = interpreter._patch_lang
    modules: set[int] = set()  # by their globals: those whose language this launch has replaced

    def patch(function: Any) -> Any:
        if id(function.__globals__) in modules:
            return interpreter._LangPatchScope()
        begins = not modules
        modules.add(id(function.__globals__))
        scope = patch_lang(function)
        if begins:
            restore = scope.restore
            scope.restore = lambda: (modules.clear(), restore())
        return scope

    dtype_of: Any = interpreter._get_np_dtype
    scalar_dtype_of = cache(dtype_of)

    def numpy_dtype(kind: Any) -> Any:
        return dtype_of(kind) if kind.scalar.is_ptr() else scalar_dtype_of(kind.scalar)

    interpreter._patch_lang = patch
    interpreter._get_np_dtype = numpy_dtype
    keep_types_of_blocks()
    compute_pairs_directly()


def keep_types_of_blocks() -> None:
    """Work out a block's type once for each shape and dtype, and a tensor's shape once for each."""
    from triton.language import core

    new_type: Any = core.block_type.__init__
    types: dict[Any, dict[str, Any]] = {}

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(each, "value", each) for each in shape))
        if key not in types:
            new_type(self, element_ty, shape)
            types[key] = dict(vars(self))
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


def compute_pairs_directly() -> None:
    """Two operands are broadcast, and whole numbers summed exactly, by NumPy.

    The interpreter broadcasts by further operations of its language, dimension by dimension, and
    checks by six more whether a result fits its type; what they find it drops unless a kernel is
    debugged. Here what does not fit fails, in lanes that are masked later too.
    """
    import numpy as np
    from triton.language import core
    from triton.language.semantic import TritonSemantic
    from triton.runtime.interpreter import TensorHandle

    types: dict[tuple[str, tuple[int, ...]], Any] = {}
    shape_of = cache(np.broadcast_shapes)

    def stretched(self: Any, given: Any, has: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        if has == shape:
            return given
        handle = given.handle
        data = np.broadcast_to(handle.data.reshape(has), shape)
        key = (given.type.scalar.name, shape)
        if key not in types:
            types[key] = core.block_type(given.type.scalar, list(shape))
        return self.tensor(TensorHandle(data, handle.dtype.scalar), types[key])

    def broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        left = lhs.handle.data.shape if lhs.type.is_block() else ()
        right = rhs.handle.data.shape if rhs.type.is_block() else ()
        if left == right:
            return lhs, rhs
        shape = shape_of(left, right)
        return stretched(self, lhs, left, shape), stretched(self, rhs, right, shape)

    exact = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def require_fit(self: Any, lhs: Any, rhs: Any, operation: Any) -> None:
        assert lhs.type.scalar == rhs.type.scalar
        if lhs.type.scalar.int_bitwidth in (1, 64):
            return
        name = operation.__name__
        found = exact[name](lhs.handle.data, rhs.handle.data, dtype=np.int64)
        limits = np.iinfo(lhs.handle.data.dtype)
        fits = limits.min <= found.min() and found.max() <= limits.max
        assert fits, f"{name} overflows {limits.dtype}"

    TritonSemantic.broadcast_impl_value = broadcast
    TritonSemantic.binary_op_sanitize_overflow_impl = require_fit


if not HAS_GPU:
    patch_once_a_launch()
