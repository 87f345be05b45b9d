"""Numbers inside the CPU kernels: bfloat16 as its 16 bits, float32 for all arithmetic.

Every function here is inlined into the kernel that calls it and turns into vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, int32, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial

LOG2_E = np.float32(1.4426950408889634)

_I32, _F32 = ir.IntType(32), ir.FloatType()


def emitted(function: Callable[..., Any]) -> Any:
    """A function for kernels that writes its own instructions in LLVM's language.

    `function` takes Numba's typing context and the types of the arguments, literal where they are
    constants, and returns the signature and what emits the instructions.
    """
    return intrinsic(prefer_literal=True)(function)


@emitted
def number_at(typing: Any, address: Any, index: Any, paired: Any) -> Any:
    """Number `index` in memory from `address` on, as float32. For kernels only.

    paired, a constant: numbers are bfloat16, which come in pairs; else float32.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_place(builder, args[0], args[1], _stored_kind(paired)))
        return widened(builder, value) if paired.literal_value else value

    return float32(types.intp, types.intp, paired), emit


@emitted
def put_number(typing: Any, address: Any, index: Any, value: Any, paired: Any) -> Any:
    """Write a float32 as number `index` from `address` on; see `number_at`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = rounded(builder, args[2]) if paired.literal_value else args[2]
        builder.store(stored, _place(builder, args[0], args[1], _stored_kind(paired)))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, float32, paired), emit


@emitted
def integer_at(typing: Any, address: Any, index: Any, bits: Any) -> Any:
    """Whole number `index` of 8, 32 or 64 `bits`, a constant, from `address` on. For kernels."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(bits.literal_value)
        value = builder.load(_place(builder, args[0], args[1], kind))
        return value if kind.width == 64 else builder.sext(value, ir.IntType(64))

    return types.intp(types.intp, types.intp, bits), emit


@emitted
def put_integer(typing: Any, address: Any, index: Any, value: Any, bits: Any) -> Any:
    """Write whole number `index` of 32 or 64 `bits`, a constant, from `address` on. For kernels."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(bits.literal_value)
        stored = args[2] if kind.width == 64 else builder.trunc(args[2], kind)
        builder.store(stored, _place(builder, args[0], args[1], kind))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, bits), emit


@emitted
def integers_at(typing: Any, address: Any, count: Any) -> Any:
    """A tuple of `count`, a constant, whole numbers of 64 bits from `address` on."""
    size = types.intp

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(64)
        places = (_place(builder, args[0], kind(i), kind) for i in range(count.literal_value))
        return cgutils.pack_array(builder, [builder.load(place) for place in places])

    return types.UniTuple(size, count.literal_value)(size, count), emit


@emitted
def bits_of(typing: Any, value: Any) -> Any:
    """The bits of a float32, as int32. For kernels only."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I32)

    return int32(float32), emit


@emitted
def float_of(typing: Any, bits: Any) -> Any:
    """The float32 of such bits, the lowest 32 of a whole number."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], _I32), _F32)

    return float32(types.intp), emit


def _stored_kind(paired: Any) -> Any:
    return ir.IntType(16) if paired.literal_value else _F32


def _place(builder: Any, address: Any, index: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])


def widened(builder: Any, bits: Any) -> Any:
    """bfloat16 bits, one or a vector, as float32: they are the upper half."""
    kind = _like(bits.type, _I32)
    wide = builder.shl(builder.zext(bits, kind), constant(kind, 16))
    return builder.bitcast(wide, _like(bits.type, _F32))


def rounded(builder: Any, value: Any) -> Any:
    """float32, one or a vector, as bfloat16 bits: rounded to nearest, ties to even.

    Just under half is added to the bits, and one more if the part that is kept is odd.
    """
    kind = _like(value.type, _I32)
    bits, sixteen = builder.bitcast(value, kind), constant(kind, 16)
    odd = builder.and_(builder.lshr(bits, sixteen), constant(kind, 1))
    raised = builder.add(builder.add(bits, constant(kind, 0x7FFF)), odd)
    return builder.trunc(builder.lshr(raised, sixteen), _like(value.type, ir.IntType(16)))


@emitted
def fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x · y + z of float32, rounded once. For kernels only."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return fused(builder, *args)

    return float32(float32, float32, float32), emit


def fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x · y + z of float32, numbers or vectors, rounded once."""
    if not isinstance(x.type, ir.VectorType):
        return builder.fma(x, y, z)
    kind = ir.FunctionType(x.type, [x.type] * 3)
    name = f"llvm.fma.v{x.type.count}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [x, y, z])


_LN_2 = 0.6931471805599453


def _taylor(degree: int) -> tuple[float, ...]:
    coefficients = [1.0]
    for term in range(1, degree + 1):
        coefficients.insert(0, coefficients[0] * _LN_2 / term)
    return tuple(coefficients)


def _interpolated(degree: int) -> tuple[float, ...]:
    """Through the Chebyshev nodes of [-0.5, 0.5], which is nearly as near as a degree allows."""
    series = Chebyshev.interpolate(np.exp2, degree, domain=[-0.5, 0.5])
    return tuple(series.convert(kind=Polynomial).coef[::-1].tolist())


PRECISE, COARSE = _taylor(7), _interpolated(3)
"""Polynomials near 2 ** f for f in [-0.5, 0.5], coefficients from the highest on: within 2e-7
relative, and 1 at 0, or within 1e-4, well below bfloat16's 4e-3."""


@emitted
def exp2(typing: Any, x: Any) -> Any:
    """2 ** x for float32 x ≤ 0 within 2e-7 relative; 0 below -126. For kernels only."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return power_of_two(builder, args[0], PRECISE)

    return float32(float32), emit


def power_of_two(builder: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """2 ** x for float32 x ≤ 0, one or a vector; 0 below -126.

    2 ** x = 2 ** n · 2 ** f with n the nearest whole number and f in [-0.5, 0.5], where a
    polynomial, `PRECISE` or `COARSE`, is near enough. It has no branch, so loops over it become
    vector code, which the C library's function does not.
    """
    whole_kind = _like(x.type, _I32)
    above = builder.fcmp_unordered(">=", x, constant(x.type, -126.0))
    clamped = builder.select(above, x, constant(x.type, -126.0))
    # Adding 1.5 · 2 ** 23 leaves no bits for a fraction: the lowest ones are the whole number.
    shifter = constant(x.type, 12582912.0)
    shifted = builder.fadd(clamped, shifter)
    p = polynomial(builder, builder.fsub(clamped, builder.fsub(shifted, shifter)), coefficients)
    exponent = builder.shl(builder.bitcast(shifted, whole_kind), constant(whole_kind, 23))
    power = builder.bitcast(builder.add(builder.bitcast(p, whole_kind), exponent), x.type)
    return builder.select(above, power, constant(x.type, 0.0))


def polynomial(builder: Any, f: Any, coefficients: Sequence[float]) -> Any:
    """Its value at f, by Horner's rule; coefficients from the highest on."""
    p = constant(f.type, coefficients[0])
    for coefficient in coefficients[1:]:
        p = fused(builder, p, f, constant(f.type, coefficient))
    return p


@emitted
def tanh(typing: Any, x: Any) -> Any:
    """The hyperbolic tangent of a float32, within 3e-7 relative. For kernels only."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return hyperbolic_tangent(builder, args[0])

    return float32(float32), emit


def hyperbolic_tangent(builder: Any, x: Any) -> Any:
    """tanh(x) of float32, one or a vector, within 3e-7 relative.

    tanh |x| = -m / (2 + m) with m = 2 ** t - 1, t = -2 |x| · log2(e) = n + f: the series of 2 ** f
    without its 1 tells 2 ** f - 1 of a small f to the last bits, so m = 2 ** n · (2 ** f - 1) +
    (2 ** n - 1) is as exact near 0 as elsewhere.
    """
    whole_kind = _like(x.type, _I32)
    sign = builder.and_(builder.bitcast(x, whole_kind), constant(whole_kind, -(2**31)))
    size = builder.bitcast(builder.xor(builder.bitcast(x, whole_kind), sign), x.type)
    t = builder.fmul(size, constant(x.type, -2 / _LN_2))
    beyond = builder.fcmp_ordered("<", t, constant(x.type, -40.0))  # where m is -1
    t = builder.select(beyond, constant(x.type, -40.0), t)
    shifter = constant(x.type, 12582912.0)  # as in `power_of_two`
    shifted = builder.fadd(t, shifter)
    f = builder.fsub(t, builder.fsub(shifted, shifter))
    grown = builder.fmul(f, polynomial(builder, f, PRECISE[:-1]))
    exponent = builder.shl(builder.bitcast(shifted, whole_kind), constant(whole_kind, 23))
    one = constant(x.type, 1.0)
    power = builder.bitcast(builder.add(builder.bitcast(one, whole_kind), exponent), x.type)
    m = fused(builder, power, grown, builder.fsub(power, one))
    bent = builder.fdiv(builder.fneg(m), builder.fadd(m, constant(x.type, 2.0)))
    return builder.bitcast(builder.or_(builder.bitcast(bent, whole_kind), sign), x.type)


def constant(kind: Any, value: float) -> Any:
    """A constant of a type, in every lane if it is a vector."""
    scalar = kind.element if isinstance(kind, ir.VectorType) else kind
    number = float(np.float32(value)) if scalar == _F32 else int(value)
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _like(kind: Any, scalar: Any) -> Any:
    return ir.VectorType(scalar, kind.count) if isinstance(kind, ir.VectorType) else scalar
