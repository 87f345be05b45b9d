from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from kept import kept
from kernel_arrays import DTYPES, seen, stored

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.softmax import LOWEST, SCALE_ROWS, soften


@kept
def soften_row(
    scores: int, weights: int, count: int, begin: int, end: int, scale: np.float32,
    cap: np.float32, marks: int, is_paired: bool,
) -> None:  # fmt: skip
    if is_paired:
        soften(scores, weights, count, begin, end, scale, cap, marks, marks + 4, 0, 0, 0, True, "")
    else:
        soften(scores, weights, count, begin, end, scale, cap, marks, marks + 4, 0, 0, 0, False, "")


def softened(
    scores: Array, weights: Array, begin: int, end: int, scale: np.float32, cap: float = 0.0
) -> tuple[float, float]:
    marks = np.empty(2, np.float32)
    soften_row(
        scores.ctypes.data, weights.ctypes.data, len(scores), begin, end, scale, np.float32(cap),
        marks.ctypes.data, weights.dtype == np.uint16,
    )  # fmt: skip
    return marks[0], marks[1]


@cache
def scaled_row(is_paired: bool, beside: str) -> Any:
    @kept
    def soften_scaled(
        scores: int, weights: int, count: int, begin: int, end: int, cap: np.float32, marks: int,
        scales: int,
    ) -> None:  # fmt: skip
        soften(
            scores, weights, count, begin, end, SCALE, cap, marks, marks + 4, scales, marks + 12,
            marks + 8, is_paired, beside,
        )  # fmt: skip

    return soften_scaled


class Scaled(NamedTuple):
    """What `soften` makes of a row beside scales."""

    weights: Array
    highest: float
    mass: float
    offset: float


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("begin", "end"), [(3, 100), (0, 128)])
@pytest.mark.parametrize(
    ("rows", "cap"), [((0,), 0.0), ((2,), 0.0), ((0, 2), 0.0), ((0, 1), 2.0), ((0, 1, 2, 3), 0.0)]
)
def test_scales_meet_scores_and_weights(
    dtype: str, begin: int, end: int, rows: tuple[int, ...], cap: float
):
    rng, width = np.random.default_rng(sum(rows)), 128
    scores = rng.normal(size=width).astype(np.float32)
    scales = rng.uniform(0.5, 2, (SCALE_ROWS, width)).astype(np.float32)
    scales[:, end:] = np.nan  # of tokens that do not count they may be no numbers
    query_sum = np.float32(1.5)
    key_scale, key_offset, value_scale, value_offset = (
        scales[row, begin:end].astype(np.float64) if row in rows else float(row % 2 == 0)
        for row in range(SCALE_ROWS)
    )
    wanted = (scores[begin:end] * key_scale + query_sum * (1 in rows) * key_offset) * SCALE
    wanted = cap * np.tanh(wanted / cap) if cap else wanted
    expected = np.exp2(wanted - wanted.max())
    found = scaled(scores, begin, end, scales, query_sum, dtype, rows, cap)
    got, tolerance = seen(found.weights), 4 * TOLERANCE[dtype]
    assert got[begin:end] == pytest.approx(expected * value_scale, rel=tolerance, abs=1e-6)
    assert not got[:begin].any()
    assert not got[end:].any()
    assert found.highest == pytest.approx(wanted.max(), rel=1e-6)
    assert found.mass == pytest.approx(expected.sum(), rel=tolerance)
    if 3 in rows:
        assert found.offset == pytest.approx((expected * value_offset).sum(), rel=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [(), (0, 2), (0, 1, 2, 3)])
def test_a_whole_row_has_the_bits_of_one_with_columns_behind_it(dtype: str, rows: tuple[int, ...]):
    rng = np.random.default_rng(len(rows))
    scores = 20 * rng.normal(size=192).astype(np.float32)
    scales = rng.uniform(0.5, 2, (SCALE_ROWS, 192)).astype(np.float32)
    whole = scaled(scores[:128], 0, 128, scales[:, :128].copy(), np.float32(1.5), dtype, rows)
    among = scaled(scores, 0, 128, scales, np.float32(1.5), dtype, rows)
    assert np.array_equal(whole.weights, among.weights[:128])
    assert whole[1:] == among[1:]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [128, 192])
def test_a_token_without_weight_stays_so_whatever_its_scale(dtype: str, width: int):
    scores, scales = np.zeros(width, np.float32), np.ones((SCALE_ROWS, width), np.float32)
    scores[5], scales[2:, 5] = -4000, np.inf
    found = scaled(scores, 0, 128, scales, np.float32(0), dtype, (0, 1, 2, 3))
    assert not found.weights[5]
    assert (found.mass, found.offset) == pytest.approx((127, 127), rel=TOLERANCE[dtype])


def scaled(
    scores: Array, begin: int, end: int, scales: Array, query_sum: np.float32, dtype: str,
    rows: tuple[int, ...], cap: float = 0.0,
) -> Scaled:  # fmt: skip
    """scales: [SCALE_ROWS, columns], of which those in `rows` are beside the row."""
    weights, marks = stored(np.ones(len(scores)), dtype), np.zeros(4, np.float32)
    marks[3] = query_sum
    own = scores.copy()
    scaled_row(dtype == "bfloat16", "".join(map(str, rows)))(
        own.ctypes.data, weights.ctypes.data, len(own), begin, end, np.float32(cap),
        marks.ctypes.data, scales.ctypes.data,
    )  # fmt: skip
    return Scaled(weights, *marks[:3].tolist())


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
@pytest.mark.parametrize("cap", [0.01, 5.0, 50.0, 1e4])
def test_scores_are_capped(dtype: str, cap: float):
    scores = np.random.default_rng(0).normal(size=192).astype(np.float32) * 20
    scores[:5], scores[100:] = np.nan, np.inf
    wanted = cap * np.tanh(scores[5:100].astype(np.float64) * SCALE / cap)
    weights = stored(np.full(192, np.nan), dtype)
    highest, mass = softened(scores, weights, 5, 100, SCALE, cap)
    assert highest == pytest.approx(wanted.max(), rel=1e-6)
    expected = np.exp2(wanted - wanted.max())
    assert np.abs(seen(weights)[5:100] - expected).max() < 4 * TOLERANCE[dtype]
    assert not seen(weights)[100:].any()
    assert mass == pytest.approx(seen(weights).sum(dtype=np.float64), rel=1e-6)


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
