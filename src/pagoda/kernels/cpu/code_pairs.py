"""Codes as pairs of bfloat16, sixty-four at a time, by tables of their bytes.

Bits of four times sixteen codes come to where they belong in sixty-four bytes, two instructions
look up the lower and the upper byte of each level, and two more put them together as pairs:

    four rows of sixteen codes  →  sixteen pairs of the first and second, sixteen of the others

For CPUs with long tables (`UNIT.long_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.level_tables import LONG, byte_tables, magnitudes, place_of
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.page_readers import Add, Source
from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    LANES,
    index,
    instruction,
    lane_numbers,
    load_vector,
)
from pagoda.kernels.vector_code import CHUNK, PLANES, Plane, VectorCode

ROWS = LONG // CHUNK
"""Rows of sixteen codes that are decoded together."""
_BYTES = ir.VectorType(BYTE, LONG)
_WORD = 8
"""Bytes within which bits are moved."""


class LevelPairs:
    """What codes of one kind stand for."""

    def __init__(self, builder: Any, code: VectorCode, table: Any) -> None:
        """table: pointer to a head's table, as `level_tables` lays it out."""
        self._builder, self._numbers = builder, code.numbers
        self._tables: dict[int, tuple[Any, ...]] = {}
        if code.numbers == "levels":
            for width in set(code.widths) - {0}:
                places = (place_of(width), place_of(width) + LONG)
                self._tables[width] = tuple(
                    load_vector(builder, builder.gep(table, [index(place)]), _BYTES)
                    for place in places
                )
        else:
            halves = [np.split(each, 2) for each in byte_tables(magnitudes(code.numbers))]
            self._tables[8] = tuple(_constant(part) for each in halves for part in each)

    def pairs(self, codes: Any, width: int) -> list[Any]:
        """Groups of the first two of four rows of codes, and of the other two: [16] int32 each.

        codes: [64] int8; their bits above `width` may be anything.
        """
        builder = self._builder
        if self._numbers == "levels":
            low, high = (
                instruction(builder, "llvm.x86.avx512.permvar.qi.512", [table, codes])
                for table in self._tables[width]
            )
        else:
            low, high = self._signed(codes)
        found = []
        for first in (0, 2):
            bytes_of = [
                side * LONG + (first + row) * LANES + lane
                for lane in range(LANES)
                for row in range(2)
                for side in range(2)
            ]
            paired = builder.shuffle_vector(low, high, lane_numbers(bytes_of))
            found.append(builder.bitcast(paired, ir.VectorType(I32, LANES)))
        return found

    def _signed(self, codes: Any) -> tuple[Any, Any]:
        """The sign is a bit of its own, or that of the whole number."""
        builder, places = self._builder, codes
        if self._numbers == "int8":
            is_negative = builder.icmp_signed("<", codes, constant(_BYTES, 0))
            places = builder.select(is_negative, builder.neg(codes), codes)
        tables = self._tables[8]
        low, high = (
            instruction(builder, "llvm.x86.avx512.vpermi2var.qi.512", [first, places, second])
            for first, second in (tables[:2], tables[2:])
        )
        sign = builder.and_(codes, constant(_BYTES, 0x80))
        return low, builder.or_(high, sign)


class PairDecoder:
    """See `Decoder`."""

    at_once = 2

    def __init__(self, code: VectorCode) -> None:
        self._code = code
        self._levels: LevelPairs | None = None

    def open(self, builder: Any, table: Any) -> None:
        """See `Decoder`."""
        self._levels = LevelPairs(builder, self._code, table)

    def keys(
        self, builder: Any, width: int, sources: Sequence[Source], stride: int, group: Any, add: Add
    ) -> None:
        """See `Decoder`: in ascending order."""
        assert self._levels is not None
        for first in range(0, CHUNK, ROWS):
            pairs = [
                self._levels.pairs(_keys(builder, width, source, stride, first), width)
                for source in sources
            ]
            for half, groups in enumerate(zip(*pairs, strict=True)):
                add(builder.add(group, index(first // 2 + half)), groups)

    def values(self, builder: Any, width: int, planes: Sequence[Any]) -> list[Any]:
        """See `Decoder`: of four tokens."""
        assert self._levels is not None
        parts = [
            _of_vectors(builder, plane, source)
            for plane, source in zip(PLANES[width], planes, strict=True)
        ]
        return self._levels.pairs(_joined(builder, width, parts), width)


def _keys(builder: Any, width: int, source: Source, stride: int, first: int) -> Any:
    """Codes of numbers `first` to `first` + 3 of a chunk, [64] int8: a row of tokens for each."""
    parts = [_of_rows(builder, plane, source, stride, first) for plane in PLANES[width]]
    return _joined(builder, width, parts)


def _joined(builder: Any, width: int, parts: Sequence[Any]) -> Any:
    """Codes from the bits of each plane, [64] int8, which are where codes have them.

    What is above them may be anything, and so it is in codes.
    """
    codes = None
    for plane, found in zip(PLANES[width], parts, strict=True):
        if codes is None:
            codes = found
            continue
        lower, upper = (constant(_BYTES, bits) for bits in (2**plane.low - 1, -(2**plane.low)))
        codes = builder.or_(builder.and_(codes, lower), builder.and_(found, upper))
    return codes


def _of_rows(builder: Any, plane: Plane, source: Source, stride: int, first: int) -> Any:
    """A plane's bits of numbers `first` to `first` + 3, where codes have them."""
    count = min(plane.num_bytes, ROWS)
    begin = first % plane.num_bytes // count * count + plane.start
    read = _rows(builder, source.first, stride, begin, count)
    numbers = [first + i // LANES for i in range(LONG)]
    places = [i % (count * LANES) for i in range(LONG)]
    return _moved(builder, _shuffled(builder, read, places), plane, numbers)


def _rows(builder: Any, source: Any, stride: int, first: int, count: int) -> Any:
    """Rows of sixteen bytes, [16 · count] int8."""
    if stride == LANES:
        start = builder.gep(source, [index(first * stride)])
        return load_vector(builder, start, ir.VectorType(BYTE, count * LANES))
    found = None
    for row in range(first, first + count):
        start = builder.gep(source, [index(row * stride)])
        read = load_vector(builder, start, ir.VectorType(BYTE, LANES))
        found = read if found is None else _beside(builder, found, read)
    return found


def _beside(builder: Any, left: Any, right: Any) -> Any:
    """A vector of sixteen after a longer one."""
    size = left.type.count
    padded = builder.shuffle_vector(right, right, lane_numbers([i % LANES for i in range(size)]))
    return builder.shuffle_vector(left, padded, lane_numbers(range(size + LANES)))


def _of_vectors(builder: Any, plane: Plane, source: Any) -> Any:
    """All numbers of four vectors' chunks: a plane's bits, where codes have them.

    source: pointer to the plane of the first of the four, which lie one after the other.
    """
    size = plane.num_bytes
    read = load_vector(builder, source, ir.VectorType(BYTE, ROWS * size))
    numbers = [i % CHUNK for i in range(LONG)]
    places = [i // CHUNK * size + number % size for i, number in enumerate(numbers)]
    return _moved(builder, _shuffled(builder, read, places), plane, numbers)


def _moved(builder: Any, read: Any, plane: Plane, numbers: Sequence[int]) -> Any:
    """Each byte's bits of a number of the chunk at `plane.low`; above them may be anything."""
    starts = [number // plane.num_bytes * plane.bits - plane.low for number in numbers]
    if not any(starts):
        return read
    places = [(_WORD * (i % _WORD) + start) % LONG for i, start in enumerate(starts)]
    control = ir.Constant(_BYTES, places)
    return instruction(builder, "llvm.x86.avx512.pmultishift.qb.512", [control, read])


def _shuffled(builder: Any, read: Any, places: Sequence[int]) -> Any:
    """[64] int8: of each a byte of what was read."""
    return builder.shuffle_vector(read, read, lane_numbers(places))


def _constant(values: Array) -> Any:
    return ir.Constant(_BYTES, [int(value) for value in values])
