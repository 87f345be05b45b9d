"""How a CPU's blocks hold the codes of values."""

from __future__ import annotations

import numpy as np

from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import CHUNK, VectorCode


def from_planes(code: VectorCode, block: Array, block_size: int) -> Array:
    """[block_size, code_bytes] uint8 from one head's bytes of a block, plane after plane."""
    parts = []
    for start, size in _planes(code):
        parts.append(block[start * block_size : (start + size) * block_size].reshape(-1, size))
    return np.concatenate(parts, axis=1)


def to_planes(code: VectorCode, packed: Array) -> Array:
    """The way back: [..., block_size * code_bytes] from [..., block_size, code_bytes]."""
    parts = [packed[..., start : start + size] for start, size in _planes(code)]
    return np.concatenate([part.reshape(*part.shape[:-2], -1) for part in parts], axis=-1)


def _planes(code: VectorCode) -> list[tuple[int, int]]:
    """Of each plane its first byte in a vector, and how many there are."""
    found, begin = [], 0
    for width in code.widths:
        found.extend((begin + plane.start, plane.num_bytes) for plane in code.planes(width))
        begin += width * CHUNK // 8
    return found
