"""The output head: from hidden rows to logits, without rounding them."""

from __future__ import annotations

from collections.abc import Callable

from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.dot import COLUMNS, dot_rows
from pagoda.kernels.cpu.fingerprint import FINGERPRINT

# Rows of the weight that a thread takes at once: its part of a logits row is then whole cache
# lines, and a few hundred pieces share out evenly.
_CHUNK = 8 * COLUMNS


def _project_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def project(out: Array, x: Array, weight: Array) -> None:
        """out = x · weightᵀ, summed and kept in float32; a row's result depends on that row alone.

        out: [rows, vocab_size] float32, written; x: [rows, width] float32;
        weight: [vocab_size, width], float32 or bfloat16 bits. All are contiguous. Every weight is
        read from memory once, however many rows there are.
        """
        _ = fingerprint
        num_rows, width = x.shape
        vocab_size = weight.shape[0]
        logits, hidden, weights = out.reshape(-1), x.reshape(-1), weight.reshape(-1)
        for chunk in prange((vocab_size + _CHUNK - 1) // _CHUNK):
            end = min((chunk + 1) * _CHUNK, vocab_size)
            for token in range(chunk * _CHUNK, end, COLUMNS):
                dot_rows(
                    logits, token, vocab_size,
                    hidden, 0, width,
                    weights, token * width, width,
                    num_rows, min(COLUMNS, end - token), width,
                )  # fmt: skip

    return project


project = _project_kernel(FINGERPRINT)
