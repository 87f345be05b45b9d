"""RMS norm of rows, with the residual sum that precedes it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.fingerprint import FINGERPRINT
from pagoda.kernels.cpu.number import load, store

# Below this many rows a second thread costs more to wake than it saves.
_SERIAL_ROWS = 8


@njit(fastmath={"contract", "nsz", "reassoc"}, error_model="numpy")
def _norm_row(out: Array, x: Array, weight: Array, eps: np.float32) -> None:
    width = x.shape[0]
    total = np.float32(0.0)
    for i in range(width):
        total += x[i] * x[i]
    factor = np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)
    for i in range(width):
        store(out, i, x[i] * factor * load(weight, i))


@njit(fastmath={"contract", "nsz"}, error_model="numpy")
def _add_norm_row(out: Array, x: Array, delta: Array, weight: Array, eps: np.float32) -> None:
    for i in range(x.shape[0]):
        x[i] += load(delta, i)
    _norm_row(out, x, weight, eps)


def _rms_norm_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def rms_norm(out: Array, x: Array, weight: Array, eps: np.float32) -> None:
        """out[row] = x[row] / rms(x[row]) * weight.

        x: [rows, width] float32; weight: [width] and out: [rows, width], float32 or bfloat16 bits;
        eps: float32.
        """
        _ = fingerprint
        if x.shape[0] < _SERIAL_ROWS:
            for row in range(x.shape[0]):
                _norm_row(out[row], x[row], weight, eps)
        else:
            for row in prange(x.shape[0]):
                _norm_row(out[row], x[row], weight, eps)

    return rms_norm


def _add_rms_norm_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def add_rms_norm(out: Array, x: Array, delta: Array, weight: Array, eps: np.float32) -> None:
        """x[row] += delta[row], then as `rms_norm`. Changes x; delta: [rows, width], as weight."""
        _ = fingerprint
        if x.shape[0] < _SERIAL_ROWS:
            for row in range(x.shape[0]):
                _add_norm_row(out[row], x[row], delta[row], weight, eps)
        else:
            for row in prange(x.shape[0]):
                _add_norm_row(out[row], x[row], delta[row], weight, eps)

    return add_rms_norm


rms_norm = _rms_norm_kernel(FINGERPRINT)
add_rms_norm = _add_rms_norm_kernel(FINGERPRINT)
