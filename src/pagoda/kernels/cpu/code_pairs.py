"""Codes as pairs of bfloat16, sixty-four at a time.

Bits of four times sixteen codes come to where they belong in sixty-four bytes, which look up what
they stand for (`pair_tables`). For CPUs with long tables (`UNIT.long_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.long_vectors import (
    ROWS,
    Order,
    joined,
    rows_of_bytes,
    shifted,
    shuffled,
)
from pagoda.kernels.cpu.page_readers import Add, Source
from pagoda.kernels.cpu.pair_tables import PairTable, pair_table
from pagoda.kernels.cpu.path_pairs import PathKeys, path_values
from pagoda.kernels.cpu.vector import BYTE, LANES, index, load_vector
from pagoda.kernels.vector_code import CHUNK, PLANES, Plane, VectorCode


class PairDecoder:
    """See `Decoder`."""

    at_once = 2

    def __init__(self, code: VectorCode) -> None:
        self._code = code
        self._table: PairTable | None = None

    def open(self, builder: Any, table: Any) -> None:
        """See `Decoder`."""
        self._table = pair_table(builder, self._code, table)

    def keys(
        self, builder: Any, width: int, sources: Sequence[Source], stride: int, group: Any, add: Add
    ) -> None:
        """See `Decoder`: in ascending order."""
        table = self._table
        assert table is not None
        firsts = [source.first for source in sources]
        keys: list[PathKeys] | list[_PlaneKeys]
        if self._code.is_path(width):
            keys = [PathKeys(builder, width, first, stride) for first in firsts]
        else:
            keys = [_PlaneKeys(builder, width, first, stride, table.order) for first in firsts]
        for number in range(0, CHUNK, ROWS):
            pairs = [table.pairs(each.codes(number), width) for each in keys]
            for half, groups in enumerate(zip(*pairs, strict=True)):
                add(builder.add(group, index(number // 2 + half)), groups)

    def values(self, builder: Any, width: int, planes: Sequence[Any]) -> list[Any]:
        """See `Decoder`: of four tokens."""
        table = self._table
        assert table is not None
        if self._code.is_path(width):
            return table.pairs(path_values(builder, width, planes), width)
        parts = [
            _of_vectors(builder, plane, table.order, source)
            for plane, source in zip(PLANES[width], planes, strict=True)
        ]
        return table.pairs(_joined(builder, width, parts), width)


class _PlaneKeys:
    """A chunk of the keys of sixteen tokens, in planes."""

    def __init__(self, builder: Any, width: int, first: Any, stride: int, order: Order) -> None:
        """first: pointer to the chunk's first byte of the first token, `stride` from the next."""
        self._builder, self._width, self._order = builder, width, order
        self._first, self._stride = first, stride

    def codes(self, number: int) -> Any:
        """Of numbers `number` to `number` + 3, a row each, [64] int8."""
        parts = [self._bits(plane, number) for plane in PLANES[self._width]]
        return _joined(self._builder, self._width, parts)

    def _bits(self, plane: Plane, number: int) -> Any:
        """A plane's bits of these, where codes have them."""
        count = min(plane.num_bytes, ROWS)
        begin = number % plane.num_bytes // count * count + plane.start
        read = rows_of_bytes(self._builder, self._first, self._stride, begin, count)
        places = [row % count * LANES + token for token, row in self._order]
        numbers = [number + row for _, row in self._order]
        return _aligned(self._builder, shuffled(self._builder, read, places), plane, numbers)


def _of_vectors(builder: Any, plane: Plane, order: Order, source: Any) -> Any:
    """All numbers of four vectors' chunks: a plane's bits, where codes have them.

    source: pointer to the plane of the first of the four, which lie one after the other.
    """
    size = plane.num_bytes
    read = load_vector(builder, source, ir.VectorType(BYTE, ROWS * size))
    places = [vector * size + number % size for number, vector in order]
    numbers = [number for number, _ in order]
    return _aligned(builder, shuffled(builder, read, places), plane, numbers)


def _aligned(builder: Any, read: Any, plane: Plane, numbers: Sequence[int]) -> Any:
    """Each byte's bits of a number of the chunk at `plane.low`; above them may be anything."""
    starts = [number // plane.num_bytes * plane.bits - plane.low for number in numbers]
    return shifted(builder, read, starts)


def _joined(builder: Any, width: int, parts: Sequence[Any]) -> Any:
    """Codes from the bits of each plane, [64] int8, which are where codes have them.

    What is above them may be anything, and so it is in codes.
    """
    codes = None
    for plane, found in zip(PLANES[width], parts, strict=True):
        codes = found if codes is None else joined(builder, codes, found, plane.low)
    return codes
