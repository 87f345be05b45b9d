"""The gate of the feed-forward part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.fingerprint import FINGERPRINT
from pagoda.kernels.cpu.number import LOG2_E, exp2, load, store

# Below this many rows a second thread costs more to wake than it saves.
_SERIAL_ROWS = 4


@njit(error_model="numpy")
def _silu_mul_row(out: Array, gate: Array, up: Array) -> None:
    for i in range(out.shape[0]):
        x = load(gate, i)
        # exp2 takes what is at most 0: silu(x) = x · s or x · (1 - s) with s = sigmoid(|x|).
        small = exp2(-abs(x) * LOG2_E)
        share = np.float32(1.0) / (np.float32(1.0) + small)
        if x < np.float32(0.0):
            share = small * share
        store(out, i, x * share * load(up, i))


def _silu_mul_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def silu_mul(out: Array, gate_up: Array) -> None:
        """out[row, i] = silu(gate_up[row, i]) * gate_up[row, width + i].

        gate_up: [rows, 2 * width], out: [rows, width]; float32 or bfloat16 bits.
        """
        _ = fingerprint
        width = out.shape[1]
        if out.shape[0] < _SERIAL_ROWS:
            for row in range(out.shape[0]):
                _silu_mul_row(out[row], gate_up[row, :width], gate_up[row, width:])
        else:
            for row in prange(out.shape[0]):
                _silu_mul_row(out[row], gate_up[row, :width], gate_up[row, width:])

    return silu_mul


silu_mul = _silu_mul_kernel(FINGERPRINT)
