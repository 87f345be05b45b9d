"""Numbers inside the CPU kernels: bfloat16 as its 16 bits, float32 for all arithmetic.

Every function here is inlined into the kernel that calls it and turns into vector instructions.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import float32, int32, njit, types, uint16
from numba.extending import intrinsic, overload

LOG2_E = np.float32(1.4426950408889634)

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


@intrinsic
def _widen(typingctx, bits):
    def emit(context, builder, signature, args):
        wide = builder.shl(builder.zext(args[0], _I32), ir.Constant(_I32, 16))
        return builder.bitcast(wide, _F32)

    return float32(uint16), emit


@intrinsic
def _narrow(typingctx, value):
    # Round to nearest, ties to even: add just under half, and one more if the kept part is odd.
    def emit(context, builder, signature, args):
        bits = builder.bitcast(args[0], _I32)
        sixteen = ir.Constant(_I32, 16)
        odd = builder.and_(builder.lshr(bits, sixteen), ir.Constant(_I32, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(_I32, 0x7FFF)), odd)
        return builder.trunc(builder.lshr(rounded, sixteen), _I16)

    return uint16(float32), emit


@intrinsic
def _power_of_two(typingctx, exponent):
    def emit(context, builder, signature, args):
        biased = builder.add(args[0], ir.Constant(_I32, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(_I32, 23)), _F32)

    return float32(int32), emit


@intrinsic
def fma(typingctx, x, y, z):
    """x · y + z of float32, rounded once. For kernels only."""

    def emit(context, builder, signature, args):
        return builder.fma(*args)

    return float32(float32, float32, float32), emit


def load(array, index):
    """`array[index]` as float32, from float32 or bfloat16 bits. For kernels only."""
    raise NotImplementedError


@overload(load)
def _load(array, index):
    if array.dtype == types.uint16:
        return lambda array, index: _widen(array[index])
    return lambda array, index: array[index]


def store(array, index, value):
    """`array[index] = value`, rounded to the nearest even for bfloat16. For kernels only."""
    raise NotImplementedError


@overload(store)
def _store(array, index, value):
    if array.dtype == types.uint16:

        def narrowed(array, index, value):
            array[index] = _narrow(np.float32(value))

        return narrowed

    def plain(array, index, value):
        array[index] = np.float32(value)

    return plain


@njit(error_model="numpy")
def exp2(x):
    """2 ** x for float32 x ≤ 0 within 2e-7 relative; 0 below -126.

    2 ** x = 2 ** n · 2 ** f with n the nearest whole number and f in [-0.5, 0.5], where Taylor's
    polynomial of degree 7 in f · ln 2 is exact to the last bit or two. It has no branch, so loops
    over it become vector code, which the C library's function does not.
    """
    clamped = max(x, np.float32(-126.0))
    # Adding 1.5 · 2 ** 23 leaves no bits for a fraction.
    whole = np.float32(clamped + np.float32(12582912.0)) - np.float32(12582912.0)
    f = clamped - whole
    p = fma(np.float32(1.5252734e-5), f, np.float32(1.5403530e-4))
    p = fma(p, f, np.float32(1.3333558e-3))
    p = fma(p, f, np.float32(9.6181291e-3))
    p = fma(p, f, np.float32(5.5504109e-2))
    p = fma(p, f, np.float32(2.4022651e-1))
    p = fma(p, f, np.float32(6.9314718e-1))
    p = fma(p, f, np.float32(1.0))
    scaled = p * _power_of_two(int32(whole))
    return scaled if x >= np.float32(-126.0) else np.float32(0.0)
