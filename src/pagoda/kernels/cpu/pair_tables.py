"""What codes stand for as pairs of bfloat16, sixty-four at a time, by tables in registers.

    four rows of sixteen codes  →  sixteen pairs of the first and second, sixteen of the others

For CPUs with long tables (`UNIT.long_tables`).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from llvmlite import ir

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.level_tables import (
    ENTRY_BYTES,
    TABLE_ENTRIES,
    byte_tables,
    magnitudes,
    place_of,
)
from pagoda.kernels.cpu.long_vectors import (
    BYTES,
    LANE_BY_LANE,
    LONG,
    QUARTER_BY_QUARTER,
    SHORTS,
    Order,
    look_up_shorts,
)
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import I32, LANES, index, instruction, lane_numbers, load_vector
from pagoda.kernels.vector_code import VectorCode

_AT_ONCE = LONG // ENTRY_BYTES
"""Entries of a table that one register holds."""


class PairTable(Protocol):
    """What makes pairs of bfloat16 of codes."""

    order: Order
    """Where codes lie among the sixty-four bytes."""

    def pairs(self, codes: Any, width: int) -> list[Any]:
        """Groups of the first two of four rows of codes, and of the other two: [16] int32 each.

        codes: [64] int8, or windows; what is above those bits that look up may be anything.
        """
        ...


class LevelPairs:
    """Levels in tables. The lowest bits of a short look up: the code in its lower byte first, then,
    moved down by eight bits, the one in its upper byte."""

    order = LANE_BY_LANE

    def __init__(self, builder: Any, code: VectorCode, table: Any) -> None:
        """table: pointer to a head's table, as `level_tables` lays it out."""
        self._builder = builder
        self._tables: dict[int, list[Any]] = {}
        """By their width: one of 32 entries, or two one after the other."""
        for width in set(code.widths) - {0}:
            entries = min(2 ** code.table_bits(width), TABLE_ENTRIES)
            start = builder.gep(table, [index(place_of(code, width))])
            self._tables[width] = [
                load_vector(builder, builder.gep(start, [index(ENTRY_BYTES * first)]), SHORTS)
                for first in range(0, entries, _AT_ONCE)
            ]

    def pairs(self, codes: Any, width: int) -> list[Any]:
        """See `PairTable`."""
        builder = self._builder
        first = builder.bitcast(codes, SHORTS)
        places = first, builder.lshr(first, constant(SHORTS, 8))
        found = [look_up_shorts(builder, self._tables[width], each) for each in places]
        return [builder.bitcast(each, ir.VectorType(I32, LANES)) for each in found]


class SignedPairs:
    """Codes of eight bits that are numbers: the sign is a bit of its own or that of the whole
    number, and of the rest lower and upper bytes are looked up."""

    order = QUARTER_BY_QUARTER

    def __init__(self, builder: Any, code: VectorCode) -> None:
        self._builder, self._is_whole = builder, code.numbers == "int8"
        tables = byte_tables(magnitudes(code.numbers))
        self._tables = [[_constant(part) for part in np.split(each, 2)] for each in tables]
        """Of lower and of upper bytes: two of 64 each, one after the other."""

    def pairs(self, codes: Any, width: int) -> list[Any]:
        """See `PairTable`."""
        builder, places = self._builder, codes
        if self._is_whole:
            is_negative = builder.icmp_signed("<", codes, constant(BYTES, 0))
            places = builder.select(is_negative, builder.neg(codes), codes)
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        low, high = (
            instruction(builder, name, [first, places, second]) for first, second in self._tables
        )
        high = builder.or_(high, builder.and_(codes, constant(BYTES, 0x80)))
        found = []
        for first in (0, 2):
            bytes_of = [
                side * LONG + self.order.index((lane, first + row))
                for lane in range(LANES)
                for row in range(2)
                for side in range(2)
            ]
            paired = builder.shuffle_vector(low, high, lane_numbers(bytes_of))
            found.append(builder.bitcast(paired, ir.VectorType(I32, LANES)))
        return found


def pair_table(builder: Any, code: VectorCode, table: Any) -> PairTable:
    """The one that suits a code; table: as `LevelPairs` takes it."""
    if code.numbers == "levels":
        return LevelPairs(builder, code, table)
    return SignedPairs(builder, code)


def _constant(values: Array) -> Any:
    return ir.Constant(BYTES, [int(value) for value in values])
