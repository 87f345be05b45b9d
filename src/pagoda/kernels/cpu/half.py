"""float16 inside the kernels: by an instruction where a CPU has one, else from its bits."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import F32, I32, UNIT

_I16, _HALF = ir.IntType(16), ir.HalfType()
_SMALLEST_NORMAL = 2.0**-14
_BIAS_SHIFT = 112 << 10
"""What float32's exponent has more, in units of float16's lowest bit."""


def from_half(builder: Any, bits: Any) -> Any:
    """The bits of finite float16, one int16 or a vector, as float32.

    Without the instruction exponent and fraction go to where float32 has them. Without an exponent,
    the fraction is a whole number of 2⁻²⁴; what is multiplied is never below what float32 calls
    normal.
    """
    float_kind = _like(bits.type, F32)
    if UNIT.halves:
        return builder.fpext(builder.bitcast(bits, _like(bits.type, _HALF)), float_kind)
    kind = _like(bits.type, I32)
    bits = builder.zext(bits, kind)
    size = builder.and_(bits, constant(kind, 0x7FFF))
    moved = builder.add(builder.shl(size, constant(kind, 13)), constant(kind, 112 << 23))
    small = builder.fmul(builder.sitofp(size, float_kind), constant(float_kind, 2.0**-24))
    is_small = builder.icmp_signed("<", size, constant(kind, 1 << 10))
    number = builder.select(is_small, builder.bitcast(small, kind), moved)
    sign = builder.shl(builder.and_(bits, constant(kind, 0x8000)), constant(kind, 16))
    return builder.bitcast(builder.or_(number, sign), float_kind)


def to_half(builder: Any, value: Any) -> Any:
    """The bits of the float16 nearest to a float32, ties to even; int16."""
    if UNIT.halves:
        return builder.bitcast(builder.fptrunc(value, _HALF), _I16)
    bits = builder.bitcast(value, I32)
    sign = builder.and_(builder.lshr(bits, _int(16)), _int(0x8000))
    rest = builder.and_(bits, _int(0x7FFFFFFF))
    magnitude = builder.bitcast(rest, F32)
    # Beside a half the lowest bit of float32 is that of float16's smallest numbers.
    beside = builder.fadd(magnitude, constant(F32, 0.5))
    small = builder.sub(builder.bitcast(beside, I32), _int(0x3F000000))
    odd = builder.and_(builder.lshr(rest, _int(13)), _int(1))
    raised = builder.lshr(builder.add(builder.add(rest, _int(0xFFF)), odd), _int(13))
    normal = builder.sub(raised, _int(_BIAS_SHIFT))
    beyond = builder.icmp_unsigned(">", normal, _int(0x7C00))
    normal = builder.select(beyond, _int(0x7C00), normal)
    is_small = builder.fcmp_ordered("<", magnitude, constant(F32, _SMALLEST_NORMAL))
    is_number = builder.fcmp_ordered("ord", magnitude, magnitude)
    found = builder.select(is_number, builder.select(is_small, small, normal), _int(0x7E00))
    return builder.trunc(builder.or_(found, sign), _I16)


def _int(value: int) -> Any:
    return ir.Constant(I32, value)


def _like(kind: Any, scalar: Any) -> Any:
    return ir.VectorType(scalar, kind.count) if isinstance(kind, ir.VectorType) else scalar
