"""Norms of rows: RMS norm, and layer norm, which takes the mean off first."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from pagoda.kernels.cpu.int8_rows import round_some
from pagoda.kernels.cpu.number import integer_at, number_at, put_number
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.team import claim, finish

_ITEM_ROWS = 4
_SUM = {"contract", "nsz", "reassoc"}


@njit(fastmath=_SUM, error_model="numpy")
def norm_factor(x: int, width: int, eps: np.float32) -> np.float32:
    """1 / sqrt(mean(x²) + eps) of a row of float32 at an address."""
    total = np.float32(0.0)
    for i in range(width):
        value = number_at(x, i, False)
        total += value * value
    return np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)


@njit(fastmath=_SUM, error_model="numpy")
def _mean(x: int, width: int) -> np.float32:
    total = np.float32(0.0)
    for i in range(width):
        total += number_at(x, i, False)
    return total / np.float32(width)


@njit(fastmath=_SUM, error_model="numpy")
def _centred_factor(x: int, width: int, mean: np.float32, eps: np.float32) -> np.float32:
    """`norm_factor` of a row whose mean is taken off."""
    total = np.float32(0.0)
    for i in range(width):
        value = number_at(x, i, False) - mean
        total += value * value
    return np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)


@cache
def norm_routine(paired: bool, is_centred: bool, is_shifted: bool = False) -> Any:
    """For rows of bfloat16, which come in pairs, or float32.

    is_centred: their mean is taken off; is_shifted: and biases are added, which stand behind the
    weights. Only centred rows are shifted.
    """
    assert is_centred or not is_shifted

    def norm_rows(
        out: int, x: int, rows: int, count: int, width: int, weight: int, eps: int
    ) -> None:
        """out[r] = x[rows[r]] / rms(x[rows[r]]) · weight, by addresses; x[rows[r]] without weight.

        out: [count, width] of the routine's dtype; x: [any, width], weight: [width], with biases
        [2 * width], or at 0, and eps: [1] float32; rows: [count] int64.
        """
        size = 2 if paired else 4
        for r in range(count):
            source, target = x + integer_at(rows, r, 64) * width * 4, out + r * width * size
            if weight == 0:
                for i in range(width):
                    put_number(target, i, number_at(source, i, False), paired)
            elif is_centred:
                mean = _mean(source, width)
                factor = _centred_factor(source, width, mean, number_at(eps, 0, False))
                for i in range(width):
                    value = (number_at(source, i, False) - mean) * factor
                    value *= number_at(weight, i, False)
                    if is_shifted:
                        value += number_at(weight, width + i, False)
                    put_number(target, i, value, paired)
            else:
                factor = norm_factor(source, width, number_at(eps, 0, False))
                for i in range(width):
                    value = number_at(source, i, False) * factor * number_at(weight, i, False)
                    put_number(target, i, value, paired)

    return compiled(norm_rows, 7)


@njit(error_model="numpy")
def norm_rows(
    phase: int, routine: int, out: int, item_size: int, x: int, rows: int, count: int, width: int,
    weight: int, eps: int, rounding: int, records: int,
) -> None:  # fmt: skip
    """A thread's share of the norm of `count` rows; see `norm_routine`.

    phase: one that nobody has begun, the same for all threads; item_size: bytes of out's numbers;
    records: of out's rows, written by `rounding`, a `round_routine`; 0: they are not rounded.
    """
    total = (count + _ITEM_ROWS - 1) // _ITEM_ROWS
    mine = 0
    item = claim(phase)
    while item < total:
        first = item * _ITEM_ROWS
        size = min(_ITEM_ROWS, count - first)
        call(
            routine,
            (out + first * width * item_size, x, rows + first * 8, size, width, weight, eps),
        )
        if records != 0:
            round_some(rounding, records, out, first, size, count, width)
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)


@njit(error_model="numpy")
def add_rows(
    phase: int, routine: int, stream: int, delta: int, rows: int, count: int, width: int,
    weight: int, scale: int, eps: int,
) -> None:  # fmt: skip
    """A thread's share of stream[r] += scale · norm(delta[r]), all float32; `delta` is changed.

    phase: as of `norm_rows`; routine: a `norm_routine` of float32. stream, delta: [count, width];
    rows: [count] int64: 0, 1, 2, …; weight: [width], or at 0: no norm; scale: [1].
    """
    total = (count + _ITEM_ROWS - 1) // _ITEM_ROWS
    mine = 0
    item = claim(phase)
    while item < total:
        first = item * _ITEM_ROWS
        size = min(_ITEM_ROWS, count - first)
        start, target = delta + first * width * 4, stream + first * width * 4
        if weight != 0:
            call(routine, (start, start, rows, size, width, weight, eps))
        factor = number_at(scale, 0, False)
        for i in range(size * width):
            value = number_at(target, i, False) + factor * number_at(start, i, False)
            put_number(target, i, value, False)
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
