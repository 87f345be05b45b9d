"""Codes as pairs of bfloat16, sixty-four at a time.

Bits of four times sixteen codes come to where they belong in sixty-four bytes, which look up what
they stand for (`level_pairs`). For CPUs with long tables (`UNIT.long_tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.level_pairs import Pairs, pairs_of
from pagoda.kernels.cpu.long_vectors import (
    ROWS,
    Order,
    joined,
    rows_of_bytes,
    shifted,
    shuffled,
)
from pagoda.kernels.cpu.page_readers import Add, Source
from pagoda.kernels.cpu.path_pairs import PathKeys, path_values
from pagoda.kernels.cpu.vector import BYTE, LANES, index, load_vector
from pagoda.kernels.vector_code import CHUNK, PLANES, Plane, VectorCode


class PairDecoder:
    """See `Decoder`."""

    at_once = 2

    def __init__(self, code: VectorCode) -> None:
        self._code = code
        self._pairs: Pairs | None = None

    def open(self, builder: Any, table: Any) -> None:
        """See `Decoder`."""
        self._pairs = pairs_of(builder, self._code, table)

    def keys(
        self, builder: Any, width: int, sources: Sequence[Source], stride: int, group: Any, add: Add
    ) -> None:
        """See `Decoder`: in ascending order."""
        own = self._pairs
        assert own is not None
        paths = []
        if self._code.is_path(width):
            paths = [PathKeys(builder, width, source.first, stride) for source in sources]
        for first in range(0, CHUNK, ROWS):
            codes = [each.windows(first) for each in paths] or [
                _keys(builder, width, own.order, source, stride, first) for source in sources
            ]
            pairs = [own.pairs(each, width) for each in codes]
            for half, groups in enumerate(zip(*pairs, strict=True)):
                add(builder.add(group, index(first // 2 + half)), groups)

    def values(self, builder: Any, width: int, planes: Sequence[Any]) -> list[Any]:
        """See `Decoder`: of four tokens."""
        own = self._pairs
        assert own is not None
        if self._code.is_path(width):
            return own.pairs(path_values(builder, width, planes), width)
        parts = [
            _of_vectors(builder, plane, own.order, source)
            for plane, source in zip(PLANES[width], planes, strict=True)
        ]
        return own.pairs(_joined(builder, width, parts), width)


def _keys(builder: Any, width: int, order: Order, source: Source, stride: int, first: int) -> Any:
    """Codes of numbers `first` to `first` + 3 of a chunk, a row of tokens each, [64] int8."""
    parts = [_of_rows(builder, plane, order, source, stride, first) for plane in PLANES[width]]
    return _joined(builder, width, parts)


def _joined(builder: Any, width: int, parts: Sequence[Any]) -> Any:
    """Codes from the bits of each plane, [64] int8, which are where codes have them.

    What is above them may be anything, and so it is in codes.
    """
    codes = None
    for plane, found in zip(PLANES[width], parts, strict=True):
        codes = found if codes is None else joined(builder, codes, found, plane.low)
    return codes


def _of_rows(
    builder: Any, plane: Plane, order: Order, source: Source, stride: int, first: int
) -> Any:
    """A plane's bits of numbers `first` to `first` + 3, where codes have them."""
    count = min(plane.num_bytes, ROWS)
    begin = first % plane.num_bytes // count * count + plane.start
    read = rows_of_bytes(builder, source.first, stride, begin, count)
    places = [row % count * LANES + lane for lane, row in order]
    return _moved(
        builder, shuffled(builder, read, places), plane, [first + row for _, row in order]
    )


def _of_vectors(builder: Any, plane: Plane, order: Order, source: Any) -> Any:
    """All numbers of four vectors' chunks: a plane's bits, where codes have them.

    source: pointer to the plane of the first of the four, which lie one after the other.
    """
    size = plane.num_bytes
    read = load_vector(builder, source, ir.VectorType(BYTE, ROWS * size))
    places = [vector * size + number % size for number, vector in order]
    return _moved(builder, shuffled(builder, read, places), plane, [number for number, _ in order])


def _moved(builder: Any, read: Any, plane: Plane, numbers: Sequence[int]) -> Any:
    """Each byte's bits of a number of the chunk at `plane.low`; above them may be anything."""
    starts = [number // plane.num_bytes * plane.bits - plane.low for number in numbers]
    return shifted(builder, read, starts)
