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
    call_directly()
    keep_types_of_blocks()
    keep_numbers()
    compute_pairs_directly()


def call_directly() -> None:
    """Hand the interpreter to what a kernel calls, without looking whether it was handed over.

    What there is to be replaced is looked for once, and made once.
    """
    import inspect

    from triton.language import core
    from triton.runtime import interpreter

    semantic = interpreter.interpreter_semantic

    @cache
    def with_interpreter(member: Any) -> Any:
        function = getattr(member, "__wrapped__", member)

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        return call

    @cache
    def builtins_of(package: Any) -> list[tuple[str, Any, Any]]:
        members = inspect.getmembers(package, core.is_builtin)
        return [(name, member, with_interpreter(member)) for name, member in members]

    def patch(package: Any, builder: Any, scope: Any) -> None:
        for name, member, call in builtins_of(package):
            if getattr(package, name) is member:
                scope.set_attr(package, name, call)

    interpreter._patch_builtin = patch


def keep_numbers() -> None:
    """Make a tensor of each number that kernels name once, and compare no dtype with itself."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    new_constant: Any = TritonSemantic.scalar_constant
    constants: dict[tuple[type, Any, str], Any] = {}

    def constant(self: Any, value: Any, dtype: Any) -> Any:
        key = type(value), value, dtype.name
        if key not in constants:
            constants[key] = new_constant(self, value, dtype)
        return constants[key]

    equal = core.dtype.__eq__
    TritonSemantic.scalar_constant = constant
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


def keep_types_of_blocks() -> None:
    """Work out a block's type once for each shape and dtype, and a tensor's shape once for each.

    A type has its lengths as numbers too: Triton's own tuples wrap each to compare it.
    """
    from triton.language import core

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

    def block_of(kind: Any, shape: tuple[int, ...]) -> Any:
        key = kind.name, shape
        if key not in types:
            types[key] = core.block_type(kind, list(shape))
        return types[key]

    def shape_of_pair(lhs: Any, rhs: Any) -> tuple[int, ...]:
        left = lhs.type.lengths if lhs.type.is_block() else ()
        right = rhs.type.lengths if rhs.type.is_block() else ()
        return left if left == right else shape_of(left, right)

    def stretched(self: Any, given: Any, shape: tuple[int, ...]) -> Any:
        handle = given.handle
        if handle.data.shape == shape:
            return given
        data = np.broadcast_to(handle.data, shape)
        return self.tensor(TensorHandle(data, handle.dtype.scalar), block_of(given.dtype, shape))

    def broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        shape = shape_of_pair(lhs, rhs)
        if shape == ():
            return lhs, rhs
        return stretched(self, lhs, shape), stretched(self, rhs, shape)

    def typed(self: Any, given: Any, shape: tuple[int, ...]) -> Any:
        if given.type.is_block() and given.type.lengths == shape:
            return given
        return self.tensor(given.handle, block_of(given.dtype, shape))

    def operands(
        self: Any, lhs: Any, rhs: Any, lhs_ptr: bool = False, rhs_ptr: bool = False,
        arithmetic_check: bool = True, div_or_mod: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        """NumPy stretches numbers in the operation that they are for. The result has the type of
        what is left of it."""
        if isinstance(lhs, core.tensor) and isinstance(rhs, core.tensor):
            left, right = lhs.dtype, rhs.dtype
            is_alike = left is right and not div_or_mod and not left.is_ptr()
            if is_alike or (left.is_ptr() and lhs_ptr and right.is_int()):
                shape = shape_of_pair(lhs, rhs)
                if shape == ():
                    return lhs, rhs
                return typed(self, lhs, shape), rhs
        return check(self, lhs, rhs, lhs_ptr, rhs_ptr, arithmetic_check, div_or_mod)

    check = TritonSemantic.binary_op_type_checking_impl
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
    TritonSemantic.binary_op_type_checking_impl = operands
    TritonSemantic.binary_op_sanitize_overflow_impl = require_fit


if not HAS_GPU:
    patch_once_a_launch()
