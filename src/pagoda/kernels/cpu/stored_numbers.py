"""The numbers of a band's span but for their scales, by what a CPU has for taking codes apart.

    short codes     up to four bits that lie together: entries of a table of sixteen
    bytes           more bits, four steps at once: bytes become part of a float32's fraction
    whole numbers   elsewhere, and small floats

A byte in a fraction makes a float32 that is more than the byte by a power of two. Where a scale
stands alone and has few bits, that stays: the scale times it is an addend without rounding, and
scale · (more than code) - addend, fused, is scale · code to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.stored_types import StoredType
from pagoda.kernels.cpu.stored_words import BYTES, Words, code_offset
from pagoda.kernels.cpu.vector import (
    BYTE,
    LANES,
    UNIT,
    floats,
    instruction,
    look_up,
    opaque,
)

_ENTRIES = 16
_LONG_BITS = 4
"""Codes of more are not looked up."""
_SIGN = 128
_EVERY_SIGN = 0x80808080
_FLOAT_BITS = 24
"""Of a float32's fraction, with the one that is not stored."""


class _Fraction(NamedTuple):
    """Where a byte lies in a float32, and what it then is more than the byte."""

    byte: int
    power: int


_LAST = _Fraction(0, 1 << 23)
_MIDDLE = _Fraction(1, 1 << 15)
_FIRST = _Fraction(2, 1 << 7)
"""Of seven bits at most."""


class Numbers:
    """Those of a span of `LANES` lanes."""

    def __init__(self, builder: Any, stored: StoredType, start: Any) -> None:
        """start: pointer to the first byte of the band's span."""
        self._builder, self._stored = builder, stored
        self._words = Words(builder, stored, start)
        self._bytes: dict[int, Any] = {}

    def of(self, step: int) -> Any:
        """Those of a step and `raised_by` more, float32 in every lane."""
        stored = self._stored
        if stored.exponent_bits:
            return self._small_float(self._words.code(step))
        if _is_short(stored) and UNIT.table_lanes == _ENTRIES:
            return look_up(self._builder, _entries(stored), self._words.shifted(step))
        if stored.table:
            return look_up(self._builder, stored.table, self._words.code(step))
        if UNIT.long_tables:
            return self._from_bytes(step)
        return self._builder.sitofp(self._words.code(step), floats(LANES))

    def _from_bytes(self, step: int) -> Any:
        builder, stored = self._builder, self._stored
        number, byte = divmod(step, BYTES)
        if number not in self._bytes:
            codes = self._words.code_bytes(number)
            if stored.is_signed:
                codes = builder.xor(codes, constant(codes.type, _EVERY_SIGN))
            self._bytes[number] = codes
        fraction = _fraction(stored)
        kind = ir.VectorType(BYTE, 4 * LANES)
        places = np.arange(kind.count) + kind.count  # those of the power
        places[fraction.byte :: 4] = np.arange(byte, kind.count, 4)
        power = builder.bitcast(constant(floats(LANES), fraction.power), kind)
        args = [self._bytes[number], ir.Constant(kind, places.tolist()), power]
        args = [builder.bitcast(args[0], kind), opaque(builder, args[1]), power]
        found = instruction(builder, "llvm.x86.avx512.vpermi2var.qi.512", args)
        found = builder.bitcast(found, floats(LANES))
        if raised_by(stored):
            return found
        return builder.fsub(found, constant(found.type, fraction.power + _zero(stored)))

    def _small_float(self, code: Any) -> Any:
        """A sign, an exponent and a fraction, moved to where float32 has them.

        The exponent is too small there by the difference of what both add to it, which a product
        with a power of two mends, also where it is 0 and the fraction stands alone.
        """
        builder, exponent, bits = self._builder, self._stored.exponent_bits, self._stored.low_bits
        top = builder.shl(code, constant(code.type, 32 - bits))
        moved = builder.ashr(top, constant(code.type, 8 - exponent))
        mask = 1 << 31 | ((1 << bits - 1) - 1) << (24 + exponent - bits)
        value = builder.and_(moved, constant(code.type, mask))
        power = constant(floats(LANES), 2.0 ** (128 - 2 ** (exponent - 1)))
        return builder.fmul(builder.bitcast(value, floats(LANES)), power)


def raised_by(stored: StoredType) -> int:
    """What `Numbers` are more than codes stand for, which addends make up for (`Scales`)."""
    is_whole = not (stored.exponent_bits or stored.table or _is_short(stored))
    fraction = _fraction(stored)
    if not (UNIT.long_tables and is_whole) or fraction == _LAST:
        return 0
    return fraction.power + _zero(stored)


def _fraction(stored: StoredType) -> _Fraction:
    """Where bytes of codes come to: the last, unless products with what it adds are exact."""
    bits = stored.low_bits + stored.high_bits
    fraction = _MIDDLE if bits == 8 else _FIRST
    more = fraction.power + _zero(stored)
    bits_of_more = (more // (more & -more)).bit_length()
    fits = stored.scale_bits and stored.scale_bits + bits_of_more <= _FLOAT_BITS
    return fraction if fits else _LAST


def _zero(stored: StoredType) -> int:
    """The byte of a code that stands for 0."""
    return _SIGN if stored.is_signed else stored.offset


def _is_short(stored: StoredType) -> bool:
    return stored.low_bits <= _LONG_BITS and not stored.high_bits


def _entries(stored: StoredType) -> list[float]:
    """What sixteen codes stand for; of shorter ones the bits above them say nothing."""
    size = 1 << stored.low_bits
    if stored.table:
        return list(stored.table)
    is_signed = stored.is_signed or code_offset(stored)
    numbers = [code - size if is_signed and code >= size // 2 else code for code in range(size)]
    return [float(numbers[place % size]) for place in range(_ENTRIES)]
