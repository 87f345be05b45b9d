"""Routines: compiled once, kept on disk, and called by their address from kernels.

Numba compiles what a kernel calls again with every kernel. The inner loops of products are much
code and differ with a model's shapes; as routines they are compiled once for each shape, and the
kernels around them once for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.ccallback import CFunc

from pagoda.kernels.cpu.fingerprint import fingerprinted
from pagoda.kernels.cpu.kept_code import keep
from pagoda.kernels.cpu.number import emitted


def compiled(function: Callable[..., None], num_args: int) -> Any:
    """Compile a routine that takes so many whole numbers, or take it from disk; its address is
    `.address`. The routine has to be kept as long as its address is used."""
    arguments, options = (types.intp,) * num_args, {"error_model": "numpy"}
    routine = CFunc(fingerprinted(function), (arguments, types.void), locals={}, options=options)
    keep(routine, function).compile()
    return routine


@emitted
def call(typing: Any, address: Any, args: Any) -> Any:
    """Call the routine at an address with a tuple of whole numbers. For kernels only."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        size = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [size] * len(args))
        routine = builder.inttoptr(values[0], kind.as_pointer())
        builder.call(routine, [builder.extract_value(values[1], i) for i in range(len(args))])
        return context.get_dummy_value()

    return types.void(types.intp, types.UniTuple(types.intp, len(args))), emit


def routine_body(args: Any, shape: tuple[Any, ...], emit: Callable[..., None]) -> Any:
    """What an emitted function returns whose arguments are a tuple of numbers and constants."""

    def emit_body(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emit(builder, [builder.extract_value(values[0], i) for i in range(len(args))])
        return context.get_dummy_value()

    return types.void(args, *shape), emit_body
