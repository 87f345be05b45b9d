"""Windows of paths, sixty-four at a time, for CPUs with long tables: see `vector_code`.

The bytes of a path lie in a ring, the last one before the first, so that eight bits from anywhere
have the steps of a number and of the two before it:

    byte 1 | byte 0 | byte 1      step i at bit 8 + i

They come to just above the rest of a code, and so make a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.level_tables import LONG
from pagoda.kernels.cpu.long_vectors import WORD, joined, moved, rows_of_bytes, shuffled
from pagoda.kernels.cpu.vector import BYTE, LANES, load_vector
from pagoda.kernels.vector_code import CHUNK, MEMORY, PATH_BYTES

_ROWS = LONG // CHUNK
_TOKENS = 2
"""Of keys in a word."""
_RING = (1, 0, 1)
_RING_START = 8
"""Where the first step is in a ring."""
KEY_ORDER = tuple(
    lane // _TOKENS * WORD + lane % _TOKENS * _ROWS + row
    for row in range(_ROWS)
    for lane in range(LANES)
)
"""Where windows of each of four rows of keys are: two tokens in a word, of each four numbers."""


class PathKeys:
    """A chunk of the keys of sixteen tokens."""

    def __init__(self, builder: Any, width: int, first: Any, stride: int) -> None:
        """first: pointer to the chunk's first byte of the first token, `stride` from the next."""
        self._builder, self._width = builder, width
        self._first, self._stride = first, stride
        rows = rows_of_bytes(builder, first, stride, 0, PATH_BYTES)
        self._rings = _words(builder, rows, _RING)
        self._whole = None
        if width > 1 and _TOKENS * PATH_BYTES * (width - 1) <= WORD:
            self._whole = self._rest(0, PATH_BYTES * (width - 1))

    def windows(self, number: int) -> Any:
        """Of numbers `number` to `number` + 3, [64] int8, in the order `KEY_ORDER`."""
        builder, rest = self._builder, self._width - 1
        size = 8 * len(_RING)
        first = _RING_START - MEMORY - rest
        starts = [size * token + first + each for token, each in _places(number)]
        steps = moved(builder, self._rings, starts)
        if rest == 0:
            return steps
        begin, end = rest * number // 8, -(-rest * (number + _ROWS) // 8)
        if self._whole is not None:
            begin, end = 0, PATH_BYTES * rest
        words = self._whole or self._rest(begin, end)
        size = 8 * (end - begin)
        starts = [size * token + rest * each - 8 * begin for token, each in _places(number)]
        return joined(builder, moved(builder, words, starts), steps, rest)

    def _rest(self, begin: int, end: int) -> Any:
        """Words with those bytes of what is left of codes."""
        count = end - begin
        rows = rows_of_bytes(self._builder, self._first, self._stride, PATH_BYTES + begin, count)
        return _words(self._builder, rows, range(count))


def _places(number: int) -> list[tuple[int, int]]:
    """Of each of 64 windows of keys, the token of the word, and the number."""
    return [(i // _ROWS % _TOKENS, number + i % _ROWS) for i in range(LONG)]


def path_values(builder: Any, width: int, planes: Sequence[Any]) -> Any:
    """Windows of all numbers of a chunk of four tokens, [64] int8, token by token.

    planes: a pointer to the bytes of the first token's plane, which the others' follow. A word has
    the path of a token as a ring, and the rest of eight numbers behind it.
    """
    (first,), rest, size = planes, width - 1, PATH_BYTES * width
    read = load_vector(builder, first, ir.VectorType(BYTE, _ROWS * size))
    places = []
    for i in range(LONG):
        token, half, byte = i // CHUNK, i // WORD % 2, i % WORD
        behind = min(byte - len(_RING), rest - 1)
        of_rest = PATH_BYTES + rest * half + behind
        places.append(token * size + (_RING[byte] if byte < len(_RING) else of_rest))
    numbers = [i % CHUNK for i in range(LONG)]
    words = shuffled(builder, read, places)
    starts = [_RING_START + number - MEMORY - rest for number in numbers]
    steps = moved(builder, words, starts)
    if rest == 0:
        return steps
    starts = [8 * len(_RING) + rest * (number % WORD) for number in numbers]
    return joined(builder, moved(builder, words, starts), steps, rest)


def _words(builder: Any, rows: Any, order: Sequence[int]) -> Any:
    """[64] int8: a word for each two tokens, with bytes of the first from rows in that order, and
    then of the second."""
    places = []
    for i in range(LONG):
        token, row = divmod(i % WORD, len(order))
        token = min(token, _TOKENS - 1)
        places.append(order[row] * LANES + i // WORD * _TOKENS + token)
    return shuffled(builder, rows, places)
