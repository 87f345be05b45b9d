"""The gate of the feed-forward part."""

from __future__ import annotations

import numpy as np
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import LOG2_E, exp2, store
from pagoda.kernels.cpu.product import PANEL


@njit(error_model="numpy")
def silu(x: np.float32) -> np.float32:
    """x / (1 + exp(-x)) of a float32."""
    # exp2 takes what is at most 0: silu(x) = x · s or x · (1 - s) with s = sigmoid(|x|).
    small = exp2(-abs(x) * LOG2_E)
    share = np.float32(1.0) / (np.float32(1.0) + small)
    return x * (small * share if x < np.float32(0.0) else share)


@njit(error_model="numpy")
def silu_gate(out: Array, row: int, column: int, sums: Array, width: int, bias: Array) -> None:
    """out = silu(gate) · up, for `panels.multiply` with the gate first and up second.

    out: [rows, width], float32 or bfloat16 bits; bias: the gate's, then up's.
    """
    half = bias.shape[0] // 2
    gate_bias, up_bias = bias[column : column + width], bias[half + column : half + column + width]
    for r in range(sums.shape[0]):
        target = out[row + r, column : column + width]
        gates, ups = sums[r, :width], sums[r, PANEL : PANEL + width]
        for c in range(width):
            store(target, c, silu(gates[c] + gate_bias[c]) * (ups[c] + up_bias[c]))
