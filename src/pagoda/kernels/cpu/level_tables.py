"""Levels as kernels look them up: as bytes, and as bfloat16.

The table of a head has, one after the other,

    TABLE_SIZE levels, int8    as `vector_code` says where those of codes of a width begin, and
                               those of windows
    64 levels, bfloat16        of codes of 1 bit, of 2 … 6 bits, and of windows of 3 … 7 bits; fewer
                               are repeated, so that bits above a code's do not count

Of windows of 7 bits the first 64 are kept. The others have the same levels in another order:
`path_pairs` turns such a window into one of the first 64.

The bounds between levels are trees: the middle one first, then the two that are next compared with,
the four after these, so that each step of a search looks up in neighbours,

    bound n of a tree = entry n of its table, n = 1, 2, 3 …; those below it 2 n, those above 2 n + 1
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pagoda.kernels.array import Array
from pagoda.kernels.reference import bfloat16_bits
from pagoda.kernels.vector_code import (
    FLOAT8_FORMS,
    MEMORY,
    MOST_LEVEL_BITS,
    MOST_PATH_BITS,
    MOST_WINDOW_BITS,
    TABLE_SIZE,
    WINDOWS,
    Numbers,
    VectorCode,
    path_place,
)

TABLE_ENTRIES = 64
ENTRY_BYTES = 2
"""Of a bfloat16."""
_TABLES = (
    *((0, bits) for bits in range(1, MOST_LEVEL_BITS + 1)),
    *((WINDOWS, bits) for bits in range(MEMORY + 1, MOST_WINDOW_BITS + 1)),
)
"""Of bfloat16: where their kind begins among the levels, and how many bits look up."""
HEAD_TABLE_BYTES = TABLE_SIZE + ENTRY_BYTES * TABLE_ENTRIES * len(_TABLES)


def head_tables(levels: Array) -> Array:
    """[..., HEAD_TABLE_BYTES] uint8; levels: [..., TABLE_SIZE] int8."""
    parts = [levels.view(np.uint8)]
    for kind, bits in _TABLES:
        begin, count = kind + 2**bits, min(2**bits, TABLE_ENTRIES)
        own = np.tile(levels[..., begin : begin + count], TABLE_ENTRIES // count)
        parts.append(bfloat16_bits(own).view(np.uint8))
    return np.concatenate(parts, axis=-1)


def bound_trees(bounds: Array) -> Array:
    """The bounds of each table as a tree; bounds, and what is returned: [..., TABLE_SIZE] float32,
    ascending from the beginning of a table on."""
    return np.ascontiguousarray(bounds[..., _tree_places()])


@cache
def _tree_places() -> Array:
    """[TABLE_SIZE]: which of ascending bounds is where trees have one."""
    places = np.arange(TABLE_SIZE)
    tables = [(2**bits, 2**bits) for bits in range(1, MOST_LEVEL_BITS + 1)]
    for width in range(1, MOST_PATH_BITS + 1):
        count = 2 ** (width - 1)
        tables += [(path_place(width) + steps * count, count) for steps in range(2 ** (MEMORY + 1))]
    for first, count in tables:
        for node in range(1, count):
            step = 2 ** (node.bit_length() - 1)
            places[first + node] = first + (2 * (node - step) + 1) * count // (2 * step) - 1
    return places


def place_of(code: VectorCode, width: int) -> int:
    """Bytes of a head's table before the bfloat16 for chunks of a width."""
    table = WINDOWS if code.is_path(width) else 0, code.table_bits(width)
    return TABLE_SIZE + ENTRY_BYTES * TABLE_ENTRIES * _TABLES.index(table)


def byte_tables(values: Array) -> tuple[Array, Array]:
    """Lower and upper bytes of numbers that bfloat16 holds."""
    bits = bfloat16_bits(values)
    return (bits & 0xFF).astype(np.uint8), (bits >> 8).astype(np.uint8)


def magnitudes(numbers: Numbers) -> Array:
    """[128] float32: what codes of eight bits stand for, but for their sign; 0: no finite number.

    Whole numbers: by their magnitude.
    """
    codes = np.arange(2**7)
    if numbers == "int8":
        return codes.astype(np.float32)
    form = FLOAT8_FORMS[numbers]
    steps = 2**form.fraction_bits
    exponent, fraction = codes // steps, codes % steps / steps
    normal = (1 + fraction) * 2.0 ** (exponent - form.bias)
    values = np.where(exponent > 0, normal, fraction * 2.0 ** (1 - form.bias))
    return np.where(values <= form.largest, values, 0.0).astype(np.float32)
