"""Codes that lie in planes, sixty-four at a time, for CPUs with long tables: see `vector_code`.

Bits of four times sixteen codes come to where they belong in sixty-four bytes.
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
from pagoda.kernels.cpu.vector import BYTE, LANES, load_vector
from pagoda.kernels.vector_code import PLANES, Plane


class PlaneKeys:
    """A chunk of the keys of sixteen tokens, in planes."""

    def __init__(self, builder: Any, width: int, first: Any, stride: int, order: Order) -> None:
        """first: pointer to the chunk's first byte of the first token, `stride` from the next."""
        self._builder, self._width, self._order = builder, width, order
        self._first, self._stride = first, stride

    def codes(self, number: int) -> Any:
        """Of numbers `number` to `number` + 3, a row each, [64] int8; what is above their bits may
        be anything."""
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


def plane_values(builder: Any, width: int, planes: Sequence[Any], order: Order) -> Any:
    """Codes of all numbers of a chunk of four tokens, [64] int8, likewise.

    planes: a pointer to the first token's bytes of each plane, which the others' follow.
    """
    parts = [
        _of_vectors(builder, plane, order, source)
        for plane, source in zip(PLANES[width], planes, strict=True)
    ]
    return _joined(builder, width, parts)


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
