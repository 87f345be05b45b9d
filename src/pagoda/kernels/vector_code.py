"""How the numbers of one key or value vector lie in memory once a codec has made codes of them.

A vector is cut into chunks of sixteen numbers, each with a width of its own: bits of a number. The
bits of a width lie in planes of 8, 4, 2 or 1 bits, the lowest first. A plane of b bits takes 2 b
bytes:

    byte i of a plane = numbers i, i + 2 b, i + 4 b … of the chunk, from the lowest bits on

so that shifting the bytes of a plane brings its codes in order, sixteen at once.

Where a code has paths, chunks of up to `MOST_PATH_BITS` bits are a trellis (Marcellin and Fischer,
1990): the lowest bits of a chunk's codes are a path, and a number is told by its own code and the
two steps of the path before it, those of the last numbers being before the first:

    window of number i = path bit i - 2, path bit i - 1, path bit i, and the rest of code i

The level of a window is an entry of a table: one of twice as many as codes of these bits have, of
which the steps before leave every other one. Such a chunk has one plane, of a path's bits number
after number, and then of the rest likewise, the lowest first.

A chunk of width 0 takes no byte, and its numbers are 0. Beside the codes a vector may have a scale
and an offset:  number = level of its code × scale + offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Literal, NamedTuple, cast

import numpy as np

from pagoda.errors import InvalidOptionError
from pagoda.kernels.array import Array

CHUNK = 16
"""Numbers of a vector that share a width."""


class Plane(NamedTuple):
    """Bits of a chunk's codes that lie together."""

    low: int
    """The lowest of them in a code."""
    bits: int
    in_turn: bool = False
    """They are a path and what is left, each number after number."""

    @property
    def start(self) -> int:
        """Bytes of the chunk before it."""
        return 2 * self.low

    @property
    def num_bytes(self) -> int:
        """Byte i of them has numbers i, i + num_bytes, i + 2 num_bytes …, if not in turn."""
        return 2 * self.bits


def _planes(*sizes: int, in_turn: bool = False) -> tuple[Plane, ...]:
    return tuple(Plane(sum(sizes[:i]), size, in_turn) for i, size in enumerate(sizes))


PLANES = MappingProxyType(
    {
        0: (),
        1: _planes(1),
        2: _planes(2),
        3: _planes(2, 1),
        4: _planes(4),
        5: _planes(4, 1),
        6: _planes(4, 2),
        8: _planes(8),
    }
)
"""Planes of a width, that of the lowest bits first."""
MOST_PATH_BITS = 5
"""The widest code that is part of a path."""
PATH_PLANES = MappingProxyType(
    {bits: _planes(bits, in_turn=True) for bits in range(1, MOST_PATH_BITS + 1)}
)
"""Planes of a width that is part of a path: one."""
PATH_BYTES = CHUNK // 8
"""Of a chunk, before the rest of its codes."""
MEMORY = 2
"""Steps of a path before a number that count for it."""
MOST_LEVEL_BITS = 6
"""The widest code whose levels a table tells."""
MOST_WINDOW_BITS = MOST_PATH_BITS + MEMORY
WINDOWS = 2 ** (MOST_LEVEL_BITS + 1)
"""Entries of a table before those of windows."""
TABLE_SIZE = WINDOWS + 2 ** (MOST_WINDOW_BITS + 1)
"""Entries of a table of levels: those of codes of b bits begin at 2 ** b, those of windows of b
bits at `WINDOWS` + 2 ** b. The rest of a code is the lowest bits of a window."""
SUBSET_STEPS = (0, 2, 1, 3)
"""Of each of a trellis's subsets, the steps of the first window whose level is in it."""
SCALE_BYTES = MappingProxyType({"float32": 4, "float16": 2, "ufloat8": 1})
"""Of a scale, by its dtype. A ufloat8 has no sign, `UFLOAT8_FRACTION` bits of fraction and else
exponent: code n stands for (1 + n % 8 / 8) · 2 ** (n // 8 - `UFLOAT8_BIAS`), and 0 for 0."""
UFLOAT8_FRACTION = 3
UFLOAT8_BIAS = 16
SCALE_REACH = 2
"""Codes of a ufloat8 that are tried to either side of the one nearest to a root mean square."""


def path_place(width: int) -> int:
    """Where levels of windows begin in a table, of paths whose codes have that width."""
    return WINDOWS + 2 ** (width + MEMORY)


class Float8Form(NamedTuple):
    """A float of eight bits."""

    fraction_bits: int
    bias: int
    largest: float


FLOAT8_FORMS = MappingProxyType(
    {"e4m3": Float8Form(3, 7, 448.0), "e5m2": Float8Form(2, 15, 57344.0)}
)

Numbers = Literal["levels", "int8", "e4m3", "e5m2"]
"""What a code stands for: an entry of a table, whole numbers of eight bits from -127 to 127, or,
in codes of eight bits, itself."""


class Run(NamedTuple):
    """Neighbouring chunks of one width."""

    first: int
    """Number of the first chunk."""
    num_chunks: int
    width: int
    start: int
    """Bytes of the vector before it."""


@dataclass(frozen=True, slots=True)
class VectorCode:
    """The stored form of a vector of a head."""

    numbers: Numbers
    widths: tuple[int, ...]
    """Bits of a number, for each chunk."""
    scale: str | None = None
    """One of `SCALE_BYTES`; None: levels are the numbers."""
    has_offset: bool = False
    """There is an offset of the scale's dtype beside it."""
    has_paths: bool = False
    """Chunks of up to `MOST_PATH_BITS` bits are paths."""

    @property
    def text(self) -> str:
        """All of it in a word, from which `of_text` makes it again: kernels are compiled for it."""
        widths = ".".join(map(str, self.widths))
        more = "offset" * self.has_offset, "paths" * self.has_paths
        return "-".join((self.numbers, widths, self.scale or "", *more))

    @classmethod
    def of_text(cls, text: str) -> VectorCode:
        """What `text` says of another."""
        numbers, widths, scale, offset, paths = text.split("-")
        bits = tuple(map(int, widths.split(".")))
        return cls(cast(Numbers, numbers), bits, scale or None, bool(offset), bool(paths))

    def is_path(self, width: int) -> bool:
        """Whether chunks of that width are paths."""
        return self.has_paths and 0 < width <= MOST_PATH_BITS

    def planes(self, width: int) -> tuple[Plane, ...]:
        """Of chunks of that width."""
        return PATH_PLANES[width] if self.is_path(width) else PLANES[width]

    def table_bits(self, width: int) -> int:
        """Of what says a number's level: its code, or its window."""
        return width + MEMORY if self.is_path(width) else width

    def table_place(self, width: int) -> int:
        """Where levels of that width begin in a table."""
        return path_place(width) if self.is_path(width) else 2**width

    @property
    def head_size(self) -> int:
        """Numbers of the vector."""
        return CHUNK * len(self.widths)

    @property
    def code_bytes(self) -> int:
        """Bytes of its codes."""
        return sum(self.widths) * CHUNK // 8

    @property
    def scale_text(self) -> str:
        """The scale's dtype, "+offset" after it if there is one; empty where there is none."""
        return (self.scale or "") + ("+offset" if self.has_offset else "")

    @property
    def scale_bytes(self) -> int:
        """Bytes of its scale and offset."""
        return (1 + self.has_offset) * SCALE_BYTES[self.scale] if self.scale else 0

    @property
    def runs(self) -> tuple[Run, ...]:
        """All chunks in order, neighbours of one width together."""
        found, first, start = [], 0, 0
        for width, chunks in groupby(self.widths):
            count = len(list(chunks))
            found.append(Run(first, count, width, start))
            first, start = first + count, start + count * width * CHUNK // 8
        return tuple(found)


def require_multiple(head_size: int, multiple: int = CHUNK) -> None:
    """Raises `InvalidOptionError` unless vectors of so many numbers can be cut into codes."""
    if head_size % multiple:
        limit = f"these codes take heads of a multiple of {multiple} numbers"
        raise InvalidOptionError("kv_cache_dtype", f"head size {head_size}", limit)


def ufloat8_values() -> Array:
    """[256] float32: what every code of a ufloat8 stands for."""
    codes = np.arange(256)
    steps = 2**UFLOAT8_FRACTION
    values = (1 + codes % steps / steps) * 2.0 ** (codes // steps - UFLOAT8_BIAS)
    return np.where(codes > 0, values, 0.0).astype(np.float32)


def pack(code: VectorCode, codes: Array) -> Array:
    """The bytes of codes: [..., head_size] whole numbers to [..., code_bytes] uint8."""
    parts: list[Array] = []
    for chunk, width in enumerate(code.widths):
        numbers = codes[..., chunk * CHUNK : (chunk + 1) * CHUNK].astype(np.uint8)
        for plane in code.planes(width):
            cut = (numbers >> plane.low).astype(np.uint8) & (2**plane.bits - 1)
            if plane.in_turn:
                parts.extend(
                    _in_turn(part, bits, num_bytes)
                    for part, bits, num_bytes in (
                        (cut & 1, 1, PATH_BYTES),
                        (cut >> 1, plane.bits - 1, plane.num_bytes - PATH_BYTES),
                    )
                )
                continue
            split = cut.reshape(*cut.shape[:-1], 8 // plane.bits, plane.num_bytes)
            parts.append(np.bitwise_or.reduce(split << _shifts(plane), axis=-2))
    return np.concatenate(parts, axis=-1)


def unpack(code: VectorCode, packed: Array) -> Array:
    """The codes in bytes: [..., code_bytes] uint8 to [..., head_size] uint8."""
    codes: Array = np.zeros((*packed.shape[:-1], code.head_size), np.uint8)
    begin = 0
    for chunk, width in enumerate(code.widths):
        for plane in code.planes(width):
            start = begin + plane.start
            read = packed[..., None, start : start + plane.num_bytes]
            if plane.in_turn:
                path, rest = np.split(read[..., 0, :], [PATH_BYTES], axis=-1)
                part = _from_turn(path, 1) | _from_turn(rest, plane.bits - 1) << 1
            else:
                part = (read >> _shifts(plane)) & (2**plane.bits - 1)
            part = part.reshape(*codes.shape[:-1], -1)
            codes[..., chunk * CHUNK : (chunk + 1) * CHUNK] |= (part << plane.low).astype(np.uint8)
        begin += width * CHUNK // 8
    return codes


def _shifts(plane: Plane) -> Array:
    """[codes of a byte, 1] uint8: where each begins."""
    return (np.arange(8 // plane.bits) * plane.bits).astype(np.uint8)[:, None]


def _in_turn(numbers: Array, bits: int, num_bytes: int) -> Array:
    """[..., num_bytes] uint8: the `bits` bits of sixteen numbers, one after the other."""
    shifted = numbers.astype(np.uint64) << _places(bits)
    whole = np.bitwise_or.reduce(shifted, axis=-1)[..., None]
    return whole.view(np.uint8)[..., :num_bytes]


def _from_turn(read: Array, bits: int) -> Array:
    """The way back: [..., 16] uint8."""
    whole = np.zeros((*read.shape[:-1], 8), np.uint8)
    whole[..., : read.shape[-1]] = read
    return ((whole.view(np.uint64) >> _places(bits)) & (2**bits - 1)).astype(np.uint8)


def _places(bits: int) -> Array:
    """[16] uint64: where each number begins."""
    return np.arange(CHUNK, dtype=np.uint64) * bits
