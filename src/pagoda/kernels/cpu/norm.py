"""RMS norm of rows."""

from __future__ import annotations

import numpy as np
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import store
from pagoda.kernels.cpu.team import claim, finish

_ITEM_ROWS = 4


@njit(fastmath={"contract", "nsz", "reassoc"}, error_model="numpy")
def norm_factor(x: Array, eps: np.float32) -> np.float32:
    """1 / sqrt(mean(x²) + eps) of a float32 row."""
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    return np.float32(1.0) / np.sqrt(total / np.float32(x.shape[0]) + eps)


@njit(error_model="numpy")
def rms_norm(
    phase: Array, out: Array, x: Array, rows: Array, weight: Array, eps: np.float32
) -> None:
    """A thread's share of out[r] = x[rows[r]] / rms(x[rows[r]]) · weight.

    phase: one that nobody has begun, the same for all threads. x: [any, width] float32;
    rows: [num_rows] int64; weight: [width] float32; out: [num_rows, width], float32 or bfloat16
    bits; eps: float32.
    """
    total = (out.shape[0] + _ITEM_ROWS - 1) // _ITEM_ROWS
    mine = 0
    item = claim(phase)
    while item < total:
        for r in range(item * _ITEM_ROWS, min((item + 1) * _ITEM_ROWS, out.shape[0])):
            source, target = x[rows[r]], out[r]
            factor = norm_factor(source, eps)
            for i in range(source.shape[0]):
                store(target, i, source[i] * factor * weight[i])
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
