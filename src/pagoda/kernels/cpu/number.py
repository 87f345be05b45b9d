"""Numbers inside the CPU kernels: bfloat16 as its 16 bits, float32 for all arithmetic.

Every function here is inlined into the kernel that calls it and turns into vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, types
from numba.core import cgutils
from numba.extending import intrinsic

LOG2_E = np.float32(1.4426950408889634)

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


def emitted(function: Callable[..., Any]) -> Any:
    """A function for kernels that writes its own instructions in LLVM's language.

    `function` takes Numba's typing context and the types of the arguments, literal where they are
    constants, and returns the signature and what emits the instructions.
    """
    return intrinsic(prefer_literal=True)(function)


@emitted
def load(typing: Any, array: Any, index: Any) -> Any:
    """array[index] as float32; array: 1-D, float32 or bfloat16 bits. For kernels only."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_pointer(context, builder, signature, args))
        if array.dtype != types.uint16:
            return value
        wide = builder.shl(builder.zext(value, _I32), ir.Constant(_I32, 16))
        return builder.bitcast(wide, _F32)

    return float32(array, types.intp), emit


@emitted
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value, a float32; array: as for `load`. For kernels only.

    To bfloat16 it is rounded to nearest, ties to even: just under half is added to the bits, and
    one more if the part that is kept is odd.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        result = args[2]
        if array.dtype == types.uint16:
            bits, sixteen = builder.bitcast(result, _I32), ir.Constant(_I32, 16)
            odd = builder.and_(builder.lshr(bits, sixteen), ir.Constant(_I32, 1))
            raised = builder.add(builder.add(bits, ir.Constant(_I32, 0x7FFF)), odd)
            result = builder.trunc(builder.lshr(raised, sixteen), _I16)
        builder.store(result, _pointer(context, builder, signature, args))
        return context.get_dummy_value()

    return types.void(array, types.intp, float32), emit


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    # Without the wrap-around of negative indices, which keeps loops from becoming vector code.
    kind = signature.args[0]
    array = context.make_array(kind)(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, kind, array, [args[1]], wraparound=False)


@emitted
def fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x · y + z of float32, rounded once. For kernels only."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return float32(float32, float32, float32), emit


_EXP2_COEFFICIENTS = (
    1.5252734e-5,
    1.5403530e-4,
    1.3333558e-3,
    9.6181291e-3,
    5.5504109e-2,
    2.4022651e-1,
    6.9314718e-1,
    1.0,
)


@emitted
def exp2(typing: Any, x: Any) -> Any:
    """2 ** x for float32 x ≤ 0 within 2e-7 relative; 0 below -126. For kernels only.

    2 ** x = 2 ** n · 2 ** f with n the nearest whole number and f in [-0.5, 0.5], where Taylor's
    polynomial of degree 7 in f · ln 2 is exact to the last bit or two. It has no branch, so loops
    over it become vector code, which the C library's function does not.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def constant(value: float) -> Any:
            return ir.Constant(_F32, float(np.float32(value)))

        above = builder.fcmp_unordered(">=", args[0], constant(-126.0))
        clamped = builder.select(above, args[0], constant(-126.0))
        # Adding 1.5 · 2 ** 23 leaves no bits for a fraction.
        shifter = constant(12582912.0)
        whole = builder.fsub(builder.fadd(clamped, shifter), shifter)
        f = builder.fsub(clamped, whole)
        p = constant(_EXP2_COEFFICIENTS[0])
        for coefficient in _EXP2_COEFFICIENTS[1:]:
            p = builder.fma(p, f, constant(coefficient))
        exponent = builder.add(builder.fptosi(whole, _I32), ir.Constant(_I32, 127))
        power = builder.bitcast(builder.shl(exponent, ir.Constant(_I32, 23)), _F32)
        return builder.select(above, builder.fmul(p, power), constant(0.0))

    return float32(float32), emit
