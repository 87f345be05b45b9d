"""What this machine does at its best, measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from pagoda.roofline import MachineLimits

_READ_BYTES = 256 * 2**20
"""More than any processor cache holds."""
_ROWS, _IN, _OUT = 512, 576, 3072
"""A full step of the default model through its widest matrices."""
_READ_ROUNDS, _PRODUCT_ROUNDS = 8, 32
_BYTE_ROUNDS = 1_000_000
_GPU_COPY_BYTES = 2**30
_GPU_ROWS = 8192
"""Rows and columns of both matrices of a product that keeps a whole GPU at work."""


def measure_limits(dtype: torch.dtype, *, of_bytes: bool = False) -> MachineLimits:
    """How fast PyTorch's threads read memory, and multiply matrices.

    Products are of `dtype` or of float32, whichever is faster: without instructions for `dtype` an
    engine can convert to float32 first. With `of_bytes` they may be of bytes too, which PyTorch
    does not multiply at a CPU's pace: that is measured without a matrix. The best of several rounds
    counts, since other work on the machine only ever slows one down. Takes 256 MiB and, where
    products are slow, some seconds.
    """
    rates = [_product_rate(each) for each in {dtype, torch.float32}]
    if of_bytes:
        rates.append(_byte_rate())
    return MachineLimits(read_bandwidth(), max(rates))


def _product_rate(dtype: torch.dtype) -> float:
    """Operations a second of a matrix product on PyTorch's threads."""
    x = torch.ones(_ROWS, _IN, dtype=dtype)
    weight = torch.ones(_OUT, _IN, dtype=dtype).t()
    out = torch.empty(_ROWS, _OUT, dtype=dtype)
    seconds = best_seconds(lambda: torch.mm(x, weight, out=out), _PRODUCT_ROUNDS)
    return 2 * _ROWS * _IN * _OUT / seconds


def _byte_rate() -> float:
    """Operations a second of products of bytes, on as many threads as PyTorch has."""
    from pagoda.kernels.cpu.byte_rate import ROUND_OPERATIONS, multiply_bytes

    sums = np.empty(torch.get_num_threads(), np.int32)
    seconds = best_seconds(lambda: multiply_bytes(_BYTE_ROUNDS, sums), _PRODUCT_ROUNDS)
    return len(sums) * _BYTE_ROUNDS * ROUND_OPERATIONS / seconds


def measure_gpu_limits(dtype: torch.dtype, device: torch.device) -> MachineLimits:
    """How fast a GPU moves memory, and multiplies matrices of `dtype`.

    Memory is copied, and what is read and what is written counts: kernels that only read may come
    out a few hundredths above it. Takes a fraction of a second, and 3 GiB of the device at most for
    a moment.
    """
    source = torch.ones(_GPU_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    x = torch.ones(_GPU_ROWS, _GPU_ROWS, dtype=dtype, device=device)
    out = torch.empty_like(x)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(device)

    def multiply() -> None:
        torch.mm(x, x, out=out)
        torch.cuda.synchronize(device)

    copy_s = best_seconds(copy, _READ_ROUNDS)
    product_s = best_seconds(multiply, _PRODUCT_ROUNDS)
    return MachineLimits(2 * _GPU_COPY_BYTES / copy_s, 2 * _GPU_ROWS**3 / product_s)


def read_bandwidth() -> float:
    """Bytes a second that PyTorch's threads read from memory, at its best moment of a few."""
    data = torch.ones(_READ_BYTES // 4)
    return _READ_BYTES / best_seconds(data.sum, _READ_ROUNDS)


def best_seconds(run: Callable[[], object], num_rounds: int) -> float:
    """The fastest of `num_rounds` calls, after one that is not timed."""
    run()
    best = float("inf")
    for _ in range(num_rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
