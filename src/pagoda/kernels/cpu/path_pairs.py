"""Windows of paths, sixty-four at a time, for CPUs with long tables: see `vector_code`.

The bytes of a path lie in a ring, the last one before the first, so that eight bits from anywhere
have the steps of a number and of the two before it. Words of keys have the rings of two tokens:

    byte 1 | byte 0 | byte 1      step i at bit 8 + i

Words of values have, of each of four tokens, the two bytes in which the steps of two numbers lie.
Steps are moved to just above the rest of a code, which makes a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from pagoda.kernels.cpu.level_tables import TABLE_ENTRIES
from pagoda.kernels.cpu.long_vectors import (
    BYTES,
    LANE_BY_LANE,
    LONG,
    ROWS,
    SHORTS,
    WORD,
    joined,
    moved,
    rows_of_bytes,
    shuffled,
)
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import BYTE, LANES, load_vector
from pagoda.kernels.vector_code import MEMORY, PATH_BYTES

_PER_WORD = WORD // ROWS
"""Lanes of four codes in a word."""
_RING = (1, 0, 1)
_RING_START = 8
"""Where the first step is in a ring."""
_SPAN = 2
"""Bytes that the steps, or the rest, of two numbers are in."""


class PathKeys:
    """A chunk of the keys of sixteen tokens."""

    def __init__(self, builder: Any, width: int, first: Any, stride: int) -> None:
        """first: pointer to the chunk's first byte of the first token, `stride` from the next."""
        self._builder, self._rest = builder, width - 1
        self._first, self._stride = first, stride
        self._rings = _words(builder, self._rows(range(PATH_BYTES)), _RING)
        self._all_rest: Any = None
        """Words with the rest of all codes of two tokens, where these are large enough."""
        if 0 < _PER_WORD * PATH_BYTES * self._rest <= WORD:
            self._all_rest = self._rest_words(range(PATH_BYTES * self._rest))

    def codes(self, number: int) -> Any:
        """Windows of numbers `number` to `number` + 3, a row each, [64] int8."""
        low = _RING_START - MEMORY - self._rest
        starts = [
            8 * len(_RING) * (token % _PER_WORD) + low + number + row for token, row in LANE_BY_LANE
        ]
        steps = moved(self._builder, self._rings, starts)
        if self._rest == 0:
            return steps
        return _windows(self._builder, self._rest_of(number), steps, self._rest)

    def _rest_of(self, number: int) -> Any:
        """What is left of those codes, from the lowest bit of each byte on."""
        words, part = self._all_rest, range(PATH_BYTES * self._rest)
        if words is None:
            part = range(self._rest * number // 8, -(-self._rest * (number + ROWS) // 8))
            words = self._rest_words(part)
        starts = [
            8 * (len(part) * (token % _PER_WORD) - part.start) + self._rest * (number + row)
            for token, row in LANE_BY_LANE
        ]
        return moved(self._builder, words, starts)

    def _rest_words(self, part: range) -> Any:
        """Words with those bytes of the rest."""
        rows = self._rows(range(PATH_BYTES + part.start, PATH_BYTES + part.stop))
        return _words(self._builder, rows, range(len(part)))

    def _rows(self, part: range) -> Any:
        """Those bytes of the chunk, a row of tokens each."""
        return rows_of_bytes(self._builder, self._first, self._stride, part.start, len(part))


class _Ring(NamedTuple):
    """Bits of sixteen numbers, the last ones before the first."""

    places: range
    """Of a token's bytes."""
    bits: int
    """Of each number."""


def path_values(builder: Any, width: int, planes: Sequence[Any]) -> Any:
    """Windows of all numbers of a chunk of four tokens, a row each, [64] int8.

    planes: a pointer to the bytes of the first token's plane, which the others' follow.
    """
    (first,), rest, size = planes, width - 1, PATH_BYTES * width
    read = load_vector(builder, first, ir.VectorType(BYTE, ROWS * size))
    path = _Ring(range(PATH_BYTES), 1)
    steps = _spans(builder, read, size, path, before=MEMORY, room=rest)
    if rest == 0:
        return steps
    own = _spans(builder, read, size, _Ring(range(PATH_BYTES, size), rest))
    return _windows(builder, own, steps, rest)


def _spans(builder: Any, read: Any, size: int, ring: _Ring, before: int = 0, room: int = 0) -> Any:
    """Eight bits of a ring of each number of four tokens, [64] int8, from `before` bits before its
    own on; they lie above so many others as there is room for.

    read: tokens of `size` bytes one after the other. A word has two bytes of each token, from the
    one on that the first of its numbers' begins in.
    """
    places, starts = [], []
    for i, (number, token) in enumerate(LANE_BY_LANE):
        start = ring.bits * (number - number % _PER_WORD) - before
        source, byte = divmod(i % WORD, _SPAN)
        place = ring.places[(start // 8 + byte) % len(ring.places)]
        places.append(source * size + place)
        own = start % 8 + ring.bits * (number % _PER_WORD)
        starts.append(8 * _SPAN * token + own - room)
    return moved(builder, shuffled(builder, read, places), starts)


def _windows(builder: Any, rest: Any, steps: Any, num_bits: int) -> Any:
    """Windows that look up, [64] int8, of so many bits of the rest and of steps above them."""
    windows = joined(builder, rest, steps, num_bits)
    is_longest = 2 ** (num_bits + 1 + MEMORY) > TABLE_ENTRIES
    return _folded(builder, windows, num_bits) if is_longest else windows


def _folded(builder: Any, windows: Any, low: int) -> Any:
    """The first step, at bit `low`, becomes its exclusive or with the last one, at `low + MEMORY`:
    which subset is meant they tell only together (`path_subsets`)."""
    last = builder.lshr(builder.bitcast(windows, SHORTS), constant(SHORTS, MEMORY))
    last = builder.and_(builder.bitcast(last, BYTES), constant(BYTES, 1 << low))
    return builder.xor(windows, last)


def _words(builder: Any, rows: Any, order: Sequence[int]) -> Any:
    """[64] int8: a word for each two tokens, with bytes of the first from rows in that order, and
    then of the second."""
    places = []
    for i in range(LONG):
        token, row = divmod(i % WORD, len(order))
        token = min(token, _PER_WORD - 1)
        places.append(order[row] * LANES + i // WORD * _PER_WORD + token)
    return shuffled(builder, rows, places)
