"""Trellises: the path that is found is the best there is, and windows say what it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from pagoda.codecs.levels import kernel_tables, level_table, lloyd_max
from pagoda.codecs.trellis import level_places, nearest_path
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import CHUNK, MOST_PATH_BITS, VectorCode, pack, unpack

BITS = range(1, MOST_PATH_BITS + 1)
ALL_PATHS = np.arange(2**CHUNK)[:, None] >> np.arange(CHUNK) & 1
"""[65536, 16]: every path that there can be."""


def levels_of(bits: int) -> Array:
    """[2 ** (bits + 1)] int8: those of Lloyd and Max."""
    found = lloyd_max(bits + 1)
    return np.rint(found * 100 / found[-1]).astype(np.int8)


def numbers(count: int, bits: int) -> Array:
    """[count, 16] float32, whose root mean square suits the levels."""
    unit = 100 / lloyd_max(bits + 1)[-1]
    return (np.random.default_rng(bits).normal(size=(count, CHUNK)) * unit).astype(np.float32)


@pytest.mark.parametrize("bits", BITS)
def test_no_path_costs_less_than_the_nearest(bits: int) -> None:
    levels, made = levels_of(bits).astype(np.float64), numbers(6, bits)
    weights = np.exp(np.random.default_rng(0).normal(size=CHUNK) * 2).astype(np.float32)
    subsets = np.roll(ALL_PATHS, 1, 1) + 2 * (ALL_PATHS ^ np.roll(ALL_PATHS, 2, 1))
    codes = nearest_path(made, weights, levels_of(bits))
    for values, own in zip(made, codes, strict=True):
        errors = np.square(values[:, None, None] - levels.reshape(-1, 4)).min(1) * weights[:, None]
        least = errors[np.arange(CHUNK), subsets].sum(1).min()
        cost = (np.square(values - levels[level_places(own)]) * weights).sum()
        assert cost == pytest.approx(least, rel=1e-5)


def test_many_chunks_have_the_paths_that_each_has_by_itself() -> None:
    made, levels = numbers(1030, 2), levels_of(2)
    weights = np.exp(np.random.default_rng(0).normal(size=made.shape)).astype(np.float32)
    parts = [nearest_path(made[part], weights[part], levels) for part in (slice(7), slice(7, None))]
    assert np.array_equal(nearest_path(made, weights, levels), np.concatenate(parts))


@pytest.mark.parametrize("bits", range(2, MOST_PATH_BITS + 1))
def test_a_path_loses_less_than_numbers_on_their_own(bits: int) -> None:
    made, levels = numbers(500, bits), levels_of(bits)
    lost = np.square(made - levels[level_places(nearest_path(made, np.ones(1), levels))]).sum()
    unit = 100 / lloyd_max(bits + 1)[-1]
    alone = lloyd_max(bits) * unit
    plain = alone[np.searchsorted((alone[1:] + alone[:-1]) / 2, made)]
    assert lost < 0.9 * np.square(made - plain).sum()


def test_windows_of_what_is_packed_have_the_levels_of_codes() -> None:
    widths = (3, 1, 5, 4, 2)
    code = VectorCode("levels", widths, "ufloat8", has_paths=True)
    assert VectorCode.of_text(code.text) == code
    rng = np.random.default_rng(2)
    codes = np.concatenate([rng.integers(0, 2**width, (50, CHUNK)) for width in widths], axis=-1)
    packed = pack(code, codes)
    assert packed.shape == (50, code.code_bytes)
    assert np.array_equal(unpack(code, packed), codes)
    assert np.array_equal(np.bitwise_or.reduce(packed), np.full(packed.shape[1], 255))
    own = {width: levels_of(width) for width in widths}
    plain = {width: level_table(np.arange(2**width)) for width in widths}
    tables, _ = kernel_tables(plain, 1.0, own)
    for chunk, width in enumerate(widths):
        part = codes[:, chunk * CHUNK : (chunk + 1) * CHUNK]
        steps = sum(np.roll(part & 1, shift, 1) << 2 - shift for shift in range(3))
        windows = (steps << width - 1) + (part >> 1)
        expected = own[width][level_places(part)]
        assert np.array_equal(tables[code.table_place(width) + windows], expected)
