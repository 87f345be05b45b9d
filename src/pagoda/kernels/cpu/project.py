"""The output head: from hidden rows to logits, without rounding them."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import load

# Rows of the weight that a thread takes at once: its part of a logits row is then whole cache
# lines, and a few hundred pieces share out evenly.
_CHUNK = 128


@njit(fastmath={"contract", "nsz", "reassoc"}, error_model="numpy")
def _dot(x: Array, y: Array) -> np.float32:
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def project(out: Array, x: Array, weight: Array) -> None:
    """out = x · weightᵀ, summed and kept in float32; a row's result depends on that row alone.

    out: [rows, vocab_size] float32, written; x: [rows, width] float32; weight: [vocab_size, width],
    float32 or bfloat16 bits. Every weight is read from memory once, however many rows there are.
    """
    num_rows, width = x.shape
    vocab_size = weight.shape[0]
    for chunk in prange((vocab_size + _CHUNK - 1) // _CHUNK):
        y = np.empty(width, np.float32)
        for token in range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, vocab_size)):
            source = weight[token]
            for i in range(width):
                y[i] = load(source, i)
            for row in range(num_rows):
                out[row, token] = _dot(x[row], y)
