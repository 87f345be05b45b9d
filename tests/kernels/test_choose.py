"""Choices against plain ones: ties, minus infinity, broken rows, any size of vocabulary."""

from __future__ import annotations

import itertools
import math

import numba
import numpy as np
import pytest

from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.choose import choose, choose_largest

WIDTHS = (1, 2, 15, 16, 17, 255, 256, 257, 1000, 5001, 20_000)
TOLERANCE = 1e-5
"""Error of a cumulative probability: weights are float32."""

FILTERS = {
    "none": (0, 1.0, 0.0),
    "top_k 1": (1, 1.0, 0.0),
    "top_k 3": (3, 1.0, 0.0),
    "top_k 700": (700, 1.0, 0.0),
    "top_p low": (0, 0.1234, 0.0),
    "top_p high": (0, 0.9531, 0.0),
    "min_p high": (0, 1.0, 0.2371),
    "min_p low": (0, 1.0, 1.37e-4),
    "top_k and top_p": (40, 0.8317, 0.0),
    "large top_k and top_p": (900, 0.9517, 0.0),
    "min_p and top_p": (0, 0.8713, 1.37e-3),
    "all": (800, 0.9713, 1.37e-4),
}


def logits_of(kind: str, rows: int, width: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, width)) * 2
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "equal":
        logits[:] = 1.5
    elif kind == "two values":
        logits = np.where(logits > 0, 2.0, -3.0)
    elif kind == "peaked":
        for row in logits:
            row[rng.integers(width, size=5)] += 15
    elif kind == "impossible":
        logits[:, 1:][rng.random((rows, width - 1)) < 0.7] = -np.inf
    elif kind == "far apart":
        logits *= 1e4
    return logits.astype(np.float32)


KINDS = ("plain", "ties", "equal", "two values", "peaked", "impossible", "far apart")


def largest(logits: Array) -> tuple[Array, Array]:
    ids, sound = np.empty(len(logits), np.int64), np.empty(len(logits), np.bool_)
    choose_largest(ids, sound, logits)
    return ids, sound


def chosen(
    logits: Array, temperature: float | Array, filters: tuple, uniform: Array
) -> tuple[Array, Array]:
    count = len(logits)
    ids, sound = np.empty(count, np.int64), np.empty(count, np.bool_)
    temperature, top_k, top_p, min_p = np.broadcast_arrays(temperature, *filters, np.empty(count))[
        :4
    ]
    choose(
        ids, sound, logits, temperature.astype(np.float32), top_k.astype(np.int64),
        top_p.astype(np.float64), min_p.astype(np.float32), uniform,
    )  # fmt: skip
    return ids, sound


def drawn(logits: Array, temperature: float, filters: tuple, uniform: Array) -> Array:
    ids, sound = chosen(logits, temperature, filters, uniform)
    assert sound.all()
    return ids


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_is_found_and_of_equals_the_lowest(kind: str):
    for rows, width in itertools.product((1, 7), WIDTHS):
        logits = logits_of(kind, rows, width, seed=width)
        ids, sound = largest(logits)
        assert sound.all(), (rows, width)
        assert ids.tolist() == [int(np.argmax(row)) for row in logits], (rows, width)
        assert drawn(logits, 0.0, FILTERS["all"], np.full(rows, 0.9)).tolist() == ids.tolist()


def test_zeros_of_both_signs_are_equal():
    row = np.full((1, 600), -1.0, np.float32)
    row[0, [300, 310]] = -0.0, 0.0
    assert largest(row)[0] == 300
    ids = drawn(row.repeat(4, 0), 0.01, (2, 1.0, 0.0), np.array([0.0, 0.4, 0.6, 0.9]))
    assert ids.tolist() == [300, 300, 310, 310]


@pytest.mark.parametrize("broken", [math.nan, -math.nan, math.inf])
def test_broken_rows_are_told(broken: float):
    for width in WIDTHS:
        for position in {0, width // 2, width - 1}:
            logits = logits_of("plain", 5, width)
            logits[[1, 3], position] = np.copysign(np.float32(broken), np.float32(broken))
            logits[4] = -np.inf
            expected = [reference.is_sound(row) for row in logits]
            assert expected == [True, False, True, False, False]
            assert largest(logits)[1].tolist() == expected, (width, position)
            for name, filters in FILTERS.items():
                ids, sound = chosen(logits, 1.0, filters, np.full(5, 0.5))
                assert sound.tolist() == expected, (name, width, position)
                assert ((ids >= 0) & (ids < width)).all(), (name, width, position)


def test_every_kind_of_nan_is_told():
    for bits in (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF):
        logits = logits_of("plain", 1, 300)
        logits.view(np.uint32)[0, 271] = bits
        assert not largest(logits)[1]


def test_the_largest_and_the_smallest_numbers_are_sound():
    most = np.finfo(np.float32).max
    for value in (most, -most, np.float32(1e-45), np.float32(0.0)):
        assert largest(np.full((1, 300), value, np.float32))[1]


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_those_of_the_reference(kind: str, name: str):
    uniform = np.array([0.0, 0.3, 0.77, 0.9999, np.nextafter(1.0, 0.0)])
    for width in WIDTHS:
        (row,) = logits_of(kind, 1, width, seed=width)
        # the last puts thousands into a class; the plain truth of a wide row takes longest
        for temperature in (1.0, 3.0, 40.0) if width < WIDTHS[-1] else (40.0,):
            ids = drawn(row[None].repeat(len(uniform), 0), temperature, FILTERS[name], uniform)
            expected = reference.drawable(row, temperature, *FILTERS[name])
            places = {token_id: place for place, token_id in enumerate(expected)}
            weights = np.fromiter(expected.values(), np.float64)
            ends = np.cumsum(weights)
            error = TOLERANCE * ends[-1]
            for token_id, target in zip(ids.tolist(), uniform * ends[-1], strict=True):
                assert token_id in expected, (width, temperature)
                end, weight = ends[places[token_id]], weights[places[token_id]]
                assert end - weight - error <= target <= end + error, (width, temperature)
                assert weight > 0, (width, temperature)


@pytest.mark.parametrize("name", FILTERS)
def test_a_row_draws_the_same_alone_and_among_others(name: str):
    logits = np.concatenate([logits_of(kind, 3, 5001, seed=1) for kind in KINDS])
    uniform = np.random.default_rng(0).random(len(logits))
    together = drawn(logits, 1.0, FILTERS[name], uniform)
    alone = [
        drawn(logits[i : i + 1], 1.0, FILTERS[name], uniform[i : i + 1])[0]
        for i in range(len(logits))
    ]
    assert together.tolist() == alone


def test_greedy_rows_among_drawn_ones():
    logits = logits_of("plain", 6, 5001)
    uniform = np.random.default_rng(1).random(6)
    temperature = np.array([0, 1, 0, 1, 0, 1])
    ids, _ = chosen(logits, temperature, FILTERS["top_p high"], uniform)
    every = drawn(logits, 1.0, FILTERS["top_p high"], uniform)
    assert ids.tolist() == np.where(temperature == 0, largest(logits)[0], every).tolist()


@pytest.mark.threads
def test_the_number_of_threads_does_not_show():
    logits = logits_of("plain", 9, 5001)
    uniform = np.random.default_rng(2).random(9)
    before = numba.get_num_threads()
    found = []
    for threads in (1, before):
        numba.set_num_threads(threads)
        found.append(drawn(logits, 1.0, FILTERS["top_p high"], uniform).tolist())
    numba.set_num_threads(before)
    assert found[0] == found[1]
