"""Random blocks of GGUF's quantised types."""

from __future__ import annotations

import gguf
import numpy as np

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.stored_types import STORED_TYPES
from pagoda.kernels.reference import bfloat16_bits


def random_rows(name: str, num_rows: int, width: int, seed: int = 0) -> Array:
    """Rows of a type with any bits at all, but for scales, which are finite: uint8."""
    stored, rng = STORED_TYPES[name], np.random.default_rng(seed)
    count = num_rows * width // stored.block_values
    blocks = rng.integers(0, 256, (count, stored.block_bytes), np.uint8)
    for place in stored.halves:
        half = rng.normal(scale=0.01, size=count).astype(np.float16)
        blocks[:, place : place + 2] = half.view(np.uint8).reshape(count, 2)
    return blocks.reshape(num_rows, -1)


def dequantised(name: str, rows: Array) -> Array:
    """What the gguf package makes of rows, as bfloat16's bits."""
    return bfloat16_bits(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]))
