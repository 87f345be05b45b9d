"""The gate of the feed-forward part."""

from __future__ import annotations

import numpy as np
from numba import njit

from pagoda.kernels.cpu.number import LOG2_E, exp2


@njit(error_model="numpy")
def sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + exp(-x)) of a float32."""
    # exp2 takes what is at most 0: s or 1 - s with s = sigmoid(|x|).
    small = exp2(-abs(x) * LOG2_E)
    share = np.float32(1.0) / (np.float32(1.0) + small)
    return small * share if x < np.float32(0.0) else share


@njit(error_model="numpy")
def silu(x: np.float32) -> np.float32:
    """x / (1 + exp(-x)) of a float32."""
    return x * sigmoid(x)
