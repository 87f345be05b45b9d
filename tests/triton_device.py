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


OPERATORS = {"__add__": "add", "__sub__": "sub", "__mul__": "mul"}
"""Methods of tensors that are an operation of the semantics and no more."""


def patch_once_a_launch() -> None:
    """Spare Triton's interpreter what it repeats at every call of a function within a kernel.

    Each time it looks through the whole language for what it replaces, although nothing has
    changed since the launch began, and for each value it makes its table of dtypes and its shape
    anew.
    """
    from triton.runtime import interpreter

    import triton_operands

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
    triton_operands.patch()


def call_directly() -> None:
    """Hand the interpreter to what a kernel calls, without looking whether it was handed over.

    What there is to be replaced is looked for once, and made once.
    """
    import inspect

    from triton.language import core
    from triton.runtime import interpreter

    import triton_operands

    semantic = interpreter.interpreter_semantic

    @cache
    def with_interpreter(member: Any) -> Any:
        function = getattr(member, "__wrapped__", member)

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        return call

    def operator(name: str) -> Any:
        operation = getattr(type(semantic), name)

        def call(self: Any, other: Any) -> Any:
            other = other.value if isinstance(other, core.constexpr) else other
            return operation(semantic, self, other, True)

        return call

    @cache
    def builtins_of(package: Any) -> list[tuple[str, Any, Any]]:
        members = inspect.getmembers(package, core.is_builtin)
        quick: dict[str, Any] = {}
        if package is core.tensor:
            quick = {name: operator(OPERATORS[name]) for name in OPERATORS}
            quick["__getitem__"] = triton_operands.indexed
        return [
            (name, member, quick.get(name) or with_interpreter(member)) for name, member in members
        ]

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

    equal: Any = core.dtype.__eq__
    cast: Any = TritonSemantic.cast

    def is_the_same(self: Any, other: Any) -> Any:
        if isinstance(other, core.dtype):
            return self is other or self.name == other.name
        return equal(self, other)

    def as_type(self: Any, given: Any, kind: Any, rounding: Any = None) -> Any:
        if given.type.scalar is kind.scalar:
            return given
        return cast(self, given, kind, rounding)

    TritonSemantic.scalar_constant = constant
    TritonSemantic.cast = as_type
    core.dtype.__eq__ = is_the_same


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


if not HAS_GPU:
    patch_once_a_launch()
