"""The functions of gates, and the hyperbolic tangent."""

from __future__ import annotations

import numpy as np
from numba import njit

from pagoda.kernels.cpu.number import LOG2_E, exp2

_ROOT_2_OVER_PI = np.float32(0.7978845608028654)
_CUBE = np.float32(0.044715)


@njit(error_model="numpy")
def silu(x: np.float32) -> np.float32:
    """x / (1 + exp(-x)) of a float32."""
    # exp2 takes what is at most 0: silu(x) = x · s or x · (1 - s) with s = sigmoid(|x|).
    small = exp2(-abs(x) * LOG2_E)
    share = np.float32(1.0) / (np.float32(1.0) + small)
    return x * (small * share if x < np.float32(0.0) else share)


@njit(error_model="numpy")
def gelu_tanh(x: np.float32) -> np.float32:
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) of a float32 (arXiv 1606.08415, section 2)."""
    # (1 + tanh(y)) / 2 is the sigmoid of 2 y.
    y = np.float32(2.0) * _ROOT_2_OVER_PI * (x + _CUBE * x * x * x)
    small = exp2(-abs(y) * LOG2_E)
    share = np.float32(1.0) / (np.float32(1.0) + small)
    return x * (small * share if y < np.float32(0.0) else share)


@njit(error_model="numpy")
def tanh(x: np.float32) -> np.float32:
    """The hyperbolic tangent of a float32, within 3e-7."""
    small = exp2(np.float32(-2.0) * abs(x) * LOG2_E)
    size = (np.float32(1.0) - small) / (np.float32(1.0) + small)
    return -size if x < np.float32(0.0) else size


GATES = {"silu": silu, "gelu_tanh": gelu_tanh}
"""By the name of the activation."""
