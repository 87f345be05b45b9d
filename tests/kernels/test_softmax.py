from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import DTYPES, seen, stored
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.softmax import LOWEST, soften


@njit
def soften_row(
    scores: int, weights: int, count: int, begin: int, end: int, scale: np.float32, marks: int,
    is_paired: bool,
) -> None:  # fmt: skip
    if is_paired:
        soften(scores, weights, count, begin, end, scale, marks, marks + 4, True)
    else:
        soften(scores, weights, count, begin, end, scale, marks, marks + 4, False)


def softened(
    scores: Array, weights: Array, begin: int, end: int, scale: np.float32
) -> tuple[float, float]:
    marks = np.empty(2, np.float32)
    soften_row(
        scores.ctypes.data, weights.ctypes.data, len(scores), begin, end, scale, marks.ctypes.data,
        weights.dtype == np.uint16,
    )  # fmt: skip
    return marks[0], marks[1]


SCALE = np.float32(0.3)
TOLERANCE = {"float32": 4e-7, "bfloat16": 2**-8}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "begin", "end"), [(64, 0, 16), (64, 0, 50), (256, 33, 240)])
def test_weights_are_powers_of_two_below_the_highest(dtype: str, width: int, begin: int, end: int):
    scores = np.random.default_rng(end).normal(size=width).astype(np.float32) * 20
    scores[:begin], scores[end:] = np.nan, np.inf  # what is not seen may be anything
    wanted = scores[begin:end].astype(np.float64) * SCALE
    weights = stored(np.full(width, np.nan), dtype)
    highest, mass = softened(scores, weights, begin, end, SCALE)
    assert highest == pytest.approx(wanted.max(), rel=1e-6)
    got = seen(weights)
    expected = np.exp2(wanted - wanted.max())
    assert np.abs(got[begin:end] - expected).max() < TOLERANCE[dtype]
    assert not got[:begin].any()
    assert not got[end:].any()
    assert mass == pytest.approx(got.sum(dtype=np.float64), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_sees_nothing_weighs_nothing(dtype: str):
    weights = stored(np.ones(64), dtype)
    highest, mass = softened(np.ones(64, np.float32), weights, 20, 20, SCALE)
    assert (highest, mass) == (LOWEST, 0.0)
    assert not weights.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_columns_that_are_not_seen_change_no_bit(dtype: str):
    scores = np.random.default_rng(0).normal(size=192).astype(np.float32)
    short, long = stored(np.zeros(64), dtype), stored(np.zeros(192), dtype)
    one = softened(scores[:64].copy(), short, 0, 41, SCALE)
    other = softened(scores.copy(), long, 0, 41, SCALE)
    assert one == other
    assert np.array_equal(short, long[:64])
