"""Windows of paths, sixty-four at a time, for CPUs with long tables: see `vector_code`.

The bytes of a path lie in a ring, the last one before the first, so that eight bits from anywhere
have the steps of a number and of the two before it:

    byte 1 | byte 0 | byte 1      step i at bit 8 + i

They come to just above the rest of a code, and so make a window. Of a window of seven bits the
first and the last step tell together which levels it may have, and make one bit of six that look
up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.level_tables import LONG
from pagoda.kernels.cpu.long_vectors import (
    BYTES,
    LANE_BY_LANE,
    ROWS,
    SHORTS,
    WORD,
    joined,
    moved,
    rows_of_bytes,
    shifted,
    shuffled,
)
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import BYTE, LANES, load_vector
from pagoda.kernels.vector_code import MEMORY, PATH_BYTES

_LANES = WORD // ROWS
"""Whose four codes each are in a word."""
_RING = (1, 0, 1)
_RING_START = 8
"""Where the first step is in a ring."""
_SPAN = 2
"""Bytes that the steps, or the rest, of two numbers are in."""


class PathKeys:
    """A chunk of the keys of sixteen tokens."""

    def __init__(self, builder: Any, width: int, first: Any, stride: int) -> None:
        """first: pointer to the chunk's first byte of the first token, `stride` from the next."""
        self._builder, self._width = builder, width
        self._first, self._stride = first, stride
        rows = rows_of_bytes(builder, first, stride, 0, PATH_BYTES)
        self._rings = _words(builder, rows, _RING)
        self._whole = None
        if width > 1 and _LANES * PATH_BYTES * (width - 1) <= WORD:
            self._whole = self._rest(0, PATH_BYTES * (width - 1))

    def windows(self, number: int) -> Any:
        """Of numbers `number` to `number` + 3, a row each, [64] int8."""
        rest, size = self._width - 1, 8 * len(_RING)
        first = _RING_START - MEMORY - rest
        starts = [size * token + first + each for token, each in _places(number)]
        steps = moved(self._builder, self._rings, starts)
        return _windows(self._builder, self._own(number), steps, rest) if rest else steps

    def _own(self, number: int) -> Any:
        """What is left of those codes, from the lowest bit of each byte on."""
        builder, rest = self._builder, self._width - 1
        begin, end = rest * number // 8, -(-rest * (number + ROWS) // 8)
        if self._whole is None and 8 % rest == 0:
            picked = [
                (rest * row // 8 * LANES + token, rest * row % 8) for token, row in LANE_BY_LANE
            ]
            return _picked(builder, self._rows(begin, end), picked)
        if self._whole is not None:
            begin, end = 0, PATH_BYTES * rest
        words = self._whole or self._rest(begin, end)
        size = 8 * (end - begin)
        starts = [size * token + rest * each - 8 * begin for token, each in _places(number)]
        return moved(builder, words, starts)

    def _rest(self, begin: int, end: int) -> Any:
        """Words with those bytes of what is left of codes."""
        return _words(self._builder, self._rows(begin, end), range(end - begin))

    def _rows(self, begin: int, end: int) -> Any:
        return rows_of_bytes(
            self._builder, self._first, self._stride, PATH_BYTES + begin, end - begin
        )


def _places(number: int) -> list[tuple[int, int]]:
    """Of each of 64 windows of keys, the token of the word, and the number."""
    return [(token % _LANES, number + row) for token, row in LANE_BY_LANE]


def path_values(builder: Any, width: int, planes: Sequence[Any]) -> Any:
    """Windows of all numbers of a chunk of four tokens, a row each, [64] int8.

    planes: a pointer to the bytes of the first token's plane, which the others' follow.
    """
    (first,), rest, size = planes, width - 1, PATH_BYTES * width
    read = load_vector(builder, first, ir.VectorType(BYTE, ROWS * size))
    steps = _spans(builder, read, size, range(PATH_BYTES), 1, -MEMORY, -rest)
    if rest == 0:
        return steps
    if 8 % rest == 0:
        picked = [
            (token * size + PATH_BYTES + rest * number // 8, rest * number % 8)
            for number, token in LANE_BY_LANE
        ]
        return _windows(builder, _picked(builder, read, picked), steps, rest)
    own = _spans(builder, read, size, range(PATH_BYTES, size), rest)
    return _windows(builder, own, steps, rest)


def _spans(
    builder: Any, read: Any, size: int, ring: range, bits: int, first: int = 0, low: int = 0
) -> Any:
    """[64] int8: of each number of four tokens, from bit `low` on what a ring has of it.

    A token has `size` bytes, of these `ring`, and there `bits` bits for each number, of which those
    from `first` on are wanted. A word has two bytes of each token, from the one on that the first
    of its numbers begins in.
    """
    places, starts = [], []
    for i, (number, token) in enumerate(LANE_BY_LANE):
        start = bits * (number - number % _LANES) + first
        source, byte = divmod(i % WORD, _SPAN)
        places.append(source * size + ring[(start // 8 + byte) % len(ring)])
        starts.append(8 * _SPAN * token + start % 8 + bits * (number % _LANES) + low)
    return moved(builder, shuffled(builder, read, places), starts)


def _picked(builder: Any, read: Any, starts: Sequence[tuple[int, int]]) -> Any:
    """[64] int8: of each a byte of what was read, from one of its bits on."""
    places, bits = zip(*starts, strict=True)
    return shifted(builder, shuffled(builder, read, places), bits)


def _windows(builder: Any, rest: Any, steps: Any, num_bits: int) -> Any:
    """[64] int8, of so many bits of the rest, and steps above them."""
    windows = joined(builder, rest, steps, num_bits)
    if 2 ** (num_bits + 1 + MEMORY) <= LONG:
        return windows
    last = builder.lshr(builder.bitcast(windows, SHORTS), constant(SHORTS, MEMORY))
    last = builder.and_(builder.bitcast(last, BYTES), constant(BYTES, 1 << num_bits))
    return builder.xor(windows, last)


def _words(builder: Any, rows: Any, order: Sequence[int]) -> Any:
    """[64] int8: a word for each two tokens, with bytes of the first from rows in that order, and
    then of the second."""
    places = []
    for i in range(LONG):
        token, row = divmod(i % WORD, len(order))
        token = min(token, _LANES - 1)
        places.append(order[row] * LANES + i // WORD * _LANES + token)
    return shuffled(builder, rows, places)
