"""Triton's language, handed the interpreter once and for all.

Triton's own replaces it in every function of a kernel anew, and takes it back with the launch.
"""

from __future__ import annotations

import inspect
from typing import Any

from triton import language
from triton.language import core, math
from triton.runtime import interpreter

from triton_interpreter.programs import is_true, number_of, span
from triton_interpreter.shapes import indexed, reduced, scanned

OPERATORS = {"__add__": "add", "__sub__": "sub", "__mul__": "mul"}
"""Methods of tensors that are an operation of the semantics and no more."""


def with_interpreter(member: Any) -> Any:
    """What kernels call, without looking whether the interpreter was handed over."""
    function, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    return call


def operator(name: str) -> Any:
    semantic = interpreter.interpreter_semantic
    operation = getattr(type(semantic), name)

    def call(self: Any, other: Any) -> Any:
        other = other.value if isinstance(other, core.constexpr) else other
        return operation(semantic, self, other, True)

    return call


def patch_builtins(package: Any, builder: Any, scope: Any) -> None:
    for name, member in inspect.getmembers(package, core.is_builtin):
        setattr(package, name, with_interpreter(member))


def patch() -> None:
    scope = interpreter._LangPatchScope()
    for package in (core, language, core.tensor, math):
        patch_builtins(package, None, scope)
    for package in (core, language):
        interpreter._patch_lang_core(package, scope)  # of both, some of it
    for package in (core, language):
        package.range = package.static_range = span
        package.reduce, package.associative_scan = reduced, scanned
    for name in OPERATORS:
        setattr(core.tensor, name, operator(OPERATORS[name]))
    core.tensor.__getitem__ = indexed
    core.tensor.__bool__, core.tensor.__index__ = is_true, number_of
    interpreter._patch_lang = lambda function: scope
