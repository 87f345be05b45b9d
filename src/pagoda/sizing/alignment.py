"""Where arrays begin in the memory of a GPU."""

from __future__ import annotations

ALIGNMENT = 256
"""Bytes; compiled kernels and cuBLAS choose by alignment, so all arrays have the same."""


def aligned(size_bytes: int) -> int:
    """`size_bytes` up to the next boundary."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
