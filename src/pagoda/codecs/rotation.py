"""Hadamard's rotation, which spreads a vector's large numbers over all of them.

A plain Hadamard matrix leaves some outliers where they are; random signs before it do not. A width
that is no power of two is rotated in parts that are: 80 as 64 and 16.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pagoda.kernels.array import Array

_SEED = 0x9A60DA


@cache
def rotation(width: int, *, with_signs: bool) -> Array:
    """[width, width] float32, orthogonal: vectors are multiplied with it from the left."""
    matrix = np.zeros((width, width))
    start = 0
    for bit in reversed(range(width.bit_length())):
        size = 1 << bit
        if width & size:
            part = slice(start, start + size)
            matrix[part, part] = _hadamard(size) / np.sqrt(size)
            start += size
    if with_signs:
        signs = np.random.default_rng(_SEED).choice((-1.0, 1.0), width)
        matrix *= signs[:, None]
    return matrix.astype(np.float32)


def _hadamard(size: int) -> Array:
    """[size, size] of ones and minus ones, for a power of two."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
