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
from pagoda.kernels.cpu.level_tables import LONG, byte_tables, magnitudes, places_of
from pagoda.kernels.cpu.long_vectors import (
    BYTES,
    WORD,
    joined,
    moved,
    rows_of_bytes,
    shuffled,
)
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.page_readers import Add, Source
from pagoda.kernels.cpu.path_pairs import KEY_ORDER, PathKeys, path_values
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


class LevelPairs:
    """What codes of one kind stand for."""

    def __init__(self, builder: Any, code: VectorCode, table: Any) -> None:
        """table: pointer to a head's table, as `level_tables` lays it out."""
        self._builder, self._numbers = builder, code.numbers
        self._tables: dict[int, list[list[Any]]] = {}
        """By their width, of lower and of upper bytes: one table of 64, or two."""
        if code.numbers == "levels":
            for width in set(code.widths) - {0}:
                self._tables[width] = [
                    [
                        load_vector(builder, builder.gep(table, [index(place)]), BYTES)
                        for place in places
                    ]
                    for places in places_of(code, width)
                ]
        else:
            halves = [np.split(each, 2) for each in byte_tables(magnitudes(code.numbers))]
            self._tables[8] = [[_constant(part) for part in each] for each in halves]

    def pairs(self, codes: Any, width: int, order: Sequence[int] = range(LONG)) -> list[Any]:
        """Groups of the first two of four rows of codes, and of the other two: [16] int32 each.

        codes: [64] int8, or windows; their bits above `width` may be anything. order: of each row
        after the other, where its codes are among them.
        """
        builder = self._builder
        if self._numbers == "levels":
            low, high = (_looked_up(builder, each, codes) for each in self._tables[width])
        else:
            low, high = self._signed(codes)
        found = []
        for first in (0, 2):
            bytes_of = [
                side * LONG + order[(first + row) * LANES + lane]
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
            is_negative = builder.icmp_signed("<", codes, constant(BYTES, 0))
            places = builder.select(is_negative, builder.neg(codes), codes)
        low, high = (_looked_up(builder, each, places) for each in self._tables[8])
        sign = builder.and_(codes, constant(BYTES, 0x80))
        return low, builder.or_(high, sign)


def _looked_up(builder: Any, tables: Sequence[Any], places: Any) -> Any:
    """Bytes of a table of 64, or of two one after the other."""
    if len(tables) == 1:
        return instruction(builder, "llvm.x86.avx512.permvar.qi.512", [tables[0], places])
    first, second = tables
    return instruction(builder, "llvm.x86.avx512.vpermi2var.qi.512", [first, places, second])


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
        levels = self._levels
        assert levels is not None
        if self._code.is_path(width):
            paths = [PathKeys(builder, width, source.first, stride) for source in sources]
        for first in range(0, CHUNK, ROWS):
            if self._code.is_path(width):
                pairs = [levels.pairs(each.windows(first), width, KEY_ORDER) for each in paths]
            else:
                pairs = [
                    levels.pairs(_keys(builder, width, source, stride, first), width)
                    for source in sources
                ]
            for half, groups in enumerate(zip(*pairs, strict=True)):
                add(builder.add(group, index(first // 2 + half)), groups)

    def values(self, builder: Any, width: int, planes: Sequence[Any]) -> list[Any]:
        """See `Decoder`: of four tokens."""
        assert self._levels is not None
        if self._code.is_path(width):
            return self._levels.pairs(path_values(builder, width, planes), width)
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
        codes = found if codes is None else joined(builder, codes, found, plane.low)
    return codes


def _of_rows(builder: Any, plane: Plane, source: Source, stride: int, first: int) -> Any:
    """A plane's bits of numbers `first` to `first` + 3, where codes have them."""
    count = min(plane.num_bytes, ROWS)
    begin = first % plane.num_bytes // count * count + plane.start
    read = rows_of_bytes(builder, source.first, stride, begin, count)
    numbers = [first + i // LANES for i in range(LONG)]
    places = [i % (count * LANES) for i in range(LONG)]
    return _moved(builder, shuffled(builder, read, places), plane, numbers)


def _of_vectors(builder: Any, plane: Plane, source: Any) -> Any:
    """All numbers of four vectors' chunks: a plane's bits, where codes have them.

    source: pointer to the plane of the first of the four, which lie one after the other.
    """
    size = plane.num_bytes
    read = load_vector(builder, source, ir.VectorType(BYTE, ROWS * size))
    numbers = [i % CHUNK for i in range(LONG)]
    places = [i // CHUNK * size + number % size for i, number in enumerate(numbers)]
    return _moved(builder, shuffled(builder, read, places), plane, numbers)


def _moved(builder: Any, read: Any, plane: Plane, numbers: Sequence[int]) -> Any:
    """Each byte's bits of a number of the chunk at `plane.low`; above them may be anything."""
    starts = [number // plane.num_bytes * plane.bits - plane.low for number in numbers]
    if not any(starts):
        return read
    return moved(builder, read, [WORD * (i % WORD) + start for i, start in enumerate(starts)])


def _constant(values: Array) -> Any:
    return ir.Constant(BYTES, [int(value) for value in values])
