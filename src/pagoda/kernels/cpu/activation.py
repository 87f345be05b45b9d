"""The functions of gates, and of what has none.

Plain functions, which kernels compile with themselves: what Numba keeps of a routine that takes a
compiled function from outside is found by no other process.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from pagoda.kernels.cpu.number import LOG2_E, exp2

_ROOT_2_OVER_PI = np.float32(0.7978845608028654)
_CUBE = np.float32(0.044715)
_FAR = np.float32(10.0)
"""Of which erf is 1."""
_ROOT_HALF, _ERF_SHARE = np.float32(0.7071067811865476), np.float32(0.3275911)
_ERF_1, _ERF_2 = np.float32(0.254829592), np.float32(-0.284496736)
_ERF_3, _ERF_4 = np.float32(1.421413741), np.float32(-1.453152027)
_ERF_5 = np.float32(1.061405429)
_STEEPNESS, _LIMIT = np.float32(1.702), np.float32(7.0)


@register_jitable(error_model="numpy")
def sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + exp(-x)) of a float32."""
    # exp2 takes what is at most 0: s or 1 - s with s = sigmoid(|x|).
    small = exp2(-abs(x) * LOG2_E)
    share = np.float32(1.0) / (np.float32(1.0) + small)
    return small * share if x < np.float32(0.0) else share


@register_jitable(error_model="numpy")
def silu(x: np.float32) -> np.float32:
    """x / (1 + exp(-x)) of a float32."""
    return x * sigmoid(x)


@register_jitable(error_model="numpy")
def gelu(x: np.float32) -> np.float32:
    """x / 2 · (1 + erf(x / √2)) of a float32 (arXiv 1606.08415, section 2).

    1 - erf(z) of z from 0 on is exp(-z²) times a polynomial in 1 / (1 + 0.3275911 z), within
    1.5e-7 (Abramowitz and Stegun 1964, 7.1.26).
    """
    z = min(abs(x) * _ROOT_HALF, _FAR)
    t = np.float32(1.0) / (np.float32(1.0) + _ERF_SHARE * z)
    share = (((_ERF_5 * t + _ERF_4) * t + _ERF_3) * t + _ERF_2) * t + _ERF_1
    tail = x * (np.float32(0.5) * t * share * exp2(-z * z * LOG2_E))
    return tail if x < np.float32(0.0) else x - tail


@register_jitable(error_model="numpy")
def gelu_tanh(x: np.float32) -> np.float32:
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) of a float32 (arXiv 1606.08415, section 2)."""
    # (1 + tanh(y)) / 2 is the sigmoid of 2 y.
    return x * sigmoid(np.float32(2.0) * _ROOT_2_OVER_PI * (x + _CUBE * x * x * x))


@register_jitable(error_model="numpy")
def _silu_gate(gate: np.float32, up: np.float32) -> np.float32:
    return silu(gate) * up


@register_jitable(error_model="numpy")
def _gelu_gate(gate: np.float32, up: np.float32) -> np.float32:
    return gelu(gate) * up


@register_jitable(error_model="numpy")
def _gelu_tanh_gate(gate: np.float32, up: np.float32) -> np.float32:
    return gelu_tanh(gate) * up


@register_jitable(error_model="numpy")
def _clamped_gate(gate: np.float32, up: np.float32) -> np.float32:
    """gate' · sigmoid(1.702 gate') · (up' + 1): at most 7, up' at least -7 (gpt-oss,
    arXiv 2508.10925)."""
    low = min(gate, _LIMIT)
    return low * sigmoid(_STEEPNESS * low) * (max(-_LIMIT, min(up, _LIMIT)) + np.float32(1.0))


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}
"""What is made of a number where there is no gate, by the name of the activation."""
GATES = {
    "silu": _silu_gate,
    "gelu": _gelu_gate,
    "gelu_tanh": _gelu_tanh_gate,
    "clamped_swiglu": _clamped_gate,
}
"""What is made of a number of gate and of up, likewise."""
