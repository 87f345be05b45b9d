"""The codes of stored weights as bytes that can be multiplied: raised, lowered or looked up.

A byte is its code plus a bias, which makes it what the CPU's products of bytes take
(`byte_products`): never below zero, or of two's complement where it would need all eight bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagoda.kernels.cpu.byte_products import TAKES_SIGNED
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.stored_types import StoredType
from pagoda.kernels.cpu.stored_words import Words
from pagoda.kernels.cpu.vector import look_up_bytes

_HALF = 128
_EVERY_TOP_BIT = 0x80808080


@dataclass(frozen=True, slots=True)
class ByteCodes:
    """What a type's bytes are."""

    signed: bool
    """They are of two's complement."""
    most: int
    """Of a byte's size."""
    bias: int
    """What a byte is more than its code."""
    flips: bool = False
    """The top bit of what is stored is turned, which adds 128 to a byte of two's complement."""
    table: tuple[int, ...] = ()
    """Bytes by what is stored."""

    @classmethod
    def of(cls, stored: StoredType) -> ByteCodes:
        """For one of `BYTE_TYPES`."""
        if not (stored.is_signed or stored.table):
            most = (1 << stored.bits) - 1
            return cls(signed=False, most=most, bias=stored.offset)
        bias, most = (0, _HALF) if TAKES_SIGNED else (_HALF, 2 * _HALF - 1)
        table = tuple(int(entry) + bias for entry in stored.table)
        flips = bool(bias) and not table
        return cls(signed=TAKES_SIGNED, most=most, bias=bias, flips=flips, table=table)

    def load(self, builder: Any, words: Words, number: int) -> Any:
        """The bytes of steps, a vector of int32 with four in each lane; see `Words.code_bytes`."""
        codes = words.code_bytes(number)
        if self.table:
            return look_up_bytes(builder, self.table, codes)
        return builder.xor(codes, constant(codes.type, _EVERY_TOP_BIT)) if self.flips else codes
