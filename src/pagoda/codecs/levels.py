"""What codes of a few bits stand for: whole numbers of eight bits, and the bounds between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from pagoda.codecs.trellis import SUBSETS, window_places
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import TABLE_SIZE, path_place

LARGEST = 127
"""The outermost level."""
NO_PATHS: Mapping[int, Array] = MappingProxyType({})
_ROUNDS = 2000


@dataclass(frozen=True)
class LevelTable:
    """The levels of codes 0, 1, 2 …, in ascending order."""

    values: Array
    """[2 ** bits] int8"""
    bounds: Array
    """[2 ** bits - 1] float32, halfway from level to level"""
    unit: np.float32
    """The level that a vector's root mean square is brought to."""


def kernel_tables(
    tables: Mapping[int, LevelTable], unit: float, paths: Mapping[int, Array] = NO_PATHS
) -> tuple[Array, Array]:
    """Levels, int8, and bounds, float32: [TABLE_SIZE], those of b bits from 2 ** b on.

    tables: by their bits. unit: the first bound, what a root mean square of 1 is brought to. paths:
    levels of trellises, by their bits; windows of one subset have their levels, and the bounds
    between them, one after the other.
    """
    levels, bounds = np.zeros(TABLE_SIZE, np.int8), np.zeros(TABLE_SIZE, np.float32)
    for bits, table in tables.items():
        count = 2**bits
        levels[count : 2 * count], bounds[count : 2 * count - 1] = table.values, table.bounds
    for bits, own in paths.items():
        first, count = path_place(bits), len(own) // SUBSETS
        found = level_table(own[window_places(bits)].reshape(-1, count))
        part = slice(first, first + found.values.size)
        levels[part] = found.values.ravel()
        bounds[part].reshape(-1, count)[:, :-1] = found.bounds
    bounds[0] = unit
    return levels, bounds


@cache
def uniform_levels(bits: int) -> LevelTable:
    """Even steps: 0, 1, 2 …"""
    return level_table(np.arange(2**bits))


@cache
def gaussian_levels(bits: int) -> LevelTable:
    """Those of least squared error for normally distributed numbers (Lloyd, Max), the outermost
    being 127."""
    levels = lloyd_max(bits)
    unit = LARGEST / levels[-1]
    return level_table(np.rint(levels * unit), unit)


@cache
def lloyd_max(bits: int) -> Array:
    """[2 ** bits] levels for numbers of mean 0 and variance 1, in turn with the bounds between.

    They are not to be written to: the next who asks gets the same.
    """
    normal = NormalDist()
    count = 2**bits
    levels = np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
    for _ in range(_ROUNDS):
        bounds = [-np.inf, *((levels[1:] + levels[:-1]) / 2), np.inf]
        density = np.array([0.0 if np.isinf(each) else normal.pdf(each) for each in bounds])
        share = np.diff([normal.cdf(each) for each in bounds])
        moved = -np.diff(density) / share
        if np.abs(moved - levels).max() < 1e-9:
            break
        levels = moved
    found = (levels - levels[::-1]) / 2
    found.setflags(write=False)
    return found


def level_table(levels: Array, unit: float = 1.0) -> LevelTable:
    """The table of ascending whole numbers of eight bits; of several, where there are more axes."""
    values = levels.astype(np.int8)
    middles = (values[..., 1:].astype(np.float32) + values[..., :-1].astype(np.float32)) / 2
    return LevelTable(values, middles.astype(np.float32), np.float32(unit))
