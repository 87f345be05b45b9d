"""Random arrays of either dtype for the tests of kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.int8_rows import RECORD_BYTES, round_routine
from pagoda.kernels.cpu.stored_words import SPAN
from pagoda.kernels.reference import bfloat16_bits, bfloat16_values

DTYPES = ("float32", "bfloat16")
TOLERANCE = {"float32": 2e-6, "bfloat16": 2**-8}
"""Relative to the largest value: sums in another order; one rounding of the result."""


def stored(x: Array, dtype: str) -> Array:
    """As a kernel takes it."""
    return bfloat16_bits(x) if dtype == "bfloat16" else np.array(x, np.float32)


def group_of(dtype: str) -> int:
    """Numbers in a group of four bytes."""
    return 2 if dtype == "bfloat16" else 1


def seen(x: Array) -> Array:
    """What an array of a kernel means, float32."""
    return bfloat16_values(x) if x.dtype == np.uint16 else x


def assert_close(got: Array, expected: Array, dtype: str) -> None:
    difference = np.abs(seen(got) - expected).max()
    assert difference <= TOLERANCE[dtype] * max(1.0, np.abs(expected).max())


def call_routine(routine: Any, *args: int) -> None:
    """Call a compiled routine with whole numbers, from Python."""
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * len(args))
    kind(routine.address)(*args)


def records_of(x: Array) -> Array:
    """What rounding makes of rows of bfloat16: [spans, rows, RECORD_BYTES]."""
    num_rows, width = x.shape
    records = np.zeros((width // SPAN, num_rows, RECORD_BYTES), np.uint8)
    for row in range(num_rows):
        call_routine(
            round_routine(), records[0, row:].ctypes.data, x[row:].ctypes.data,
            num_rows * RECORD_BYTES, width // SPAN,
        )  # fmt: skip
    return records
