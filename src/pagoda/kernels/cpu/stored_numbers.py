"""The numbers of a band's span but for their scales, by what a CPU has for taking codes apart.

    up to six bits      a table of bfloat16, where a CPU looks up two bytes at once: two steps
    up to four bits     that lie together: a table of sixteen float32
    eight bits          become part of a float32's fraction
    whole numbers       elsewhere, and small floats

A byte in a fraction makes a float32 that is more than the byte by a power of two. Where a scale
stands alone and has few bits, that stays: the scale times it is an addend without rounding, and
scale · (more than code) - addend, fused, is scale · code to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.long_vectors import SHORTS, look_up_shorts
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.stored_types import StoredType
from pagoda.kernels.cpu.stored_words import BYTES, Words, code_offset
from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    LANES,
    UNIT,
    floats,
    halves,
    instruction,
    look_up,
    opaque,
)

_SHORT_BITS = 4
"""Codes of more that lie together are not looked up as float32."""
_PAIR_BITS = 6
"""Codes of more are not looked up in pairs."""
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


class Numbers:
    """Those of a span of `LANES` lanes."""

    def __init__(self, builder: Any, stored: StoredType, start: Any) -> None:
        """start: pointer to the first byte of the band's span."""
        self._builder, self._stored = builder, stored
        self._words = Words(builder, stored, start)
        self._bytes: dict[int, Any] = {}
        self._pairs: dict[int, Any] = {}
        self._tables = _pair_tables(stored) if _has_pairs(stored) else []

    def of(self, step: int) -> Any:
        """Those of a step and `raised_by` more, float32 in every lane."""
        stored = self._stored
        if stored.exponent_bits:
            return self._small_float(self._words.code(step))
        if _has_pairs(stored):
            return self._from_pair(step)
        if _is_short(stored) and UNIT.table_lanes == LANES:
            entries = _entries(stored, LANES).tolist()
            return look_up(self._builder, entries, self._words.shifted(step))
        if stored.table:
            return look_up(self._builder, stored.table, self._words.code(step))
        if UNIT.long_tables:
            return self._from_byte(step)
        return self._builder.sitofp(self._words.code(step), floats(LANES))

    def _from_pair(self, step: int) -> Any:
        """Of two that are looked up at once, as bfloat16 in lower and upper halves of lanes."""
        builder, upper = self._builder, step % BYTES // 2
        lower = step - 2 * upper
        if lower not in self._pairs:
            places = builder.bitcast(self._places(lower), SHORTS)
            found = look_up_shorts(builder, self._tables, places)
            self._pairs[lower] = builder.bitcast(found, ir.VectorType(I32, LANES))
        return halves(paired=True)[upper](builder, self._pairs[lower])

    def _places(self, step: int) -> Any:
        """The codes of a step in the lowest bits of lanes, and those of the second after it in the
        lowest bits of upper halves. Others may be above."""
        if not self._stored.high_bits:
            return self._words.shifted(step)
        number, byte = divmod(step, BYTES)
        codes = self._code_bytes(number)
        return self._builder.lshr(codes, constant(codes.type, 8 * byte)) if byte else codes

    def _code_bytes(self, number: int) -> Any:
        """See `Words.code_bytes`."""
        if number not in self._bytes:
            self._bytes[number] = self._words.code_bytes(number)
        return self._bytes[number]

    def _from_byte(self, step: int) -> Any:
        builder, stored = self._builder, self._stored
        number, byte = divmod(step, BYTES)
        codes = self._code_bytes(number)
        if stored.is_signed:
            codes = builder.xor(codes, constant(codes.type, _EVERY_SIGN))
        fraction = _fraction(stored)
        kind = ir.VectorType(BYTE, 4 * LANES)
        places = np.arange(kind.count) + kind.count  # those of the power
        places[fraction.byte :: 4] = np.arange(byte, kind.count, 4)
        power = builder.bitcast(constant(floats(LANES), fraction.power), kind)
        which = opaque(builder, ir.Constant(kind, places.tolist()))
        args = [builder.bitcast(codes, kind), which, power]
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
    is_byte = UNIT.long_tables and not (stored.exponent_bits or stored.table or _has_pairs(stored))
    fraction = _fraction(stored)
    return fraction.power + _zero(stored) if is_byte and fraction != _LAST else 0


def _fraction(stored: StoredType) -> _Fraction:
    """Where bytes of codes come to: the last, unless products with what it adds are exact."""
    more = _MIDDLE.power + _zero(stored)
    bits_of_more = (more // (more & -more)).bit_length()
    fits = stored.scale_bits and stored.scale_bits + bits_of_more <= _FLOAT_BITS
    return _MIDDLE if fits else _LAST


def _zero(stored: StoredType) -> int:
    """The byte of a code that stands for 0."""
    return _SIGN if stored.is_signed else stored.offset


def _is_short(stored: StoredType) -> bool:
    return stored.low_bits <= _SHORT_BITS and not stored.high_bits


def _has_pairs(stored: StoredType) -> bool:
    """What codes stand for is looked up as bfloat16, which holds it."""
    if not UNIT.long_tables or stored.bits > _PAIR_BITS:
        return False
    return not (_entries(stored, 1 << stored.bits).view(np.uint32) & 0xFFFF).any()


def _entries(stored: StoredType, count: int) -> Array:
    """[count] float32: what codes stand for; of shorter ones the bits above them say nothing."""
    codes = np.arange(count) % (1 << stored.bits)
    if stored.table:
        return np.array(stored.table, np.float32)[codes]
    if stored.is_signed or code_offset(stored):
        half = 1 << (stored.bits - 1)
        return ((codes ^ half) - half).astype(np.float32)
    return (codes - stored.offset).astype(np.float32)


def _pair_tables(stored: StoredType) -> list[Any]:
    """The entries as bfloat16, one table or two, for `look_up_shorts`."""
    entries = _entries(stored, max(SHORTS.count, 1 << stored.bits)).view(np.uint32) >> 16
    parts = np.split(entries, len(entries) // SHORTS.count)
    return [ir.Constant(SHORTS, part.tolist()) for part in parts]
