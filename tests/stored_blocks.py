"""Random blocks of GGUF's quantised types."""

from __future__ import annotations

import gguf
import numpy as np

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.stored_types import STORED_TYPES
from pagoda.kernels.reference import bfloat16_bits

_SCALES = {
    **{"Q8_0": 5e-4, "IQ4_NL": 5e-4, "IQ4_XS": 5e-5, "Q2_K": 2e-3, "Q3_K": 5e-4},
    **{"Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 5e-5},
}
"""Of the float16 numbers in blocks; where none is named, 0.005."""


def random_rows(name: str, num_rows: int, width: int, seed: int = 0) -> Array:
    """Rows of a type with any bits at all, but for scales, so that numbers are some 0.05: uint8."""
    stored, rng = STORED_TYPES[name], np.random.default_rng(seed)
    count = num_rows * width // stored.block_values
    blocks = rng.integers(0, 256, (count, stored.block_bytes), np.uint8)
    for place in stored.halves:
        half = rng.normal(scale=_SCALES.get(name, 0.005), size=count).astype(np.float16)
        blocks[:, place : place + 2] = half.view(np.uint8).reshape(count, 2)
    return blocks.reshape(num_rows, -1)


def dequantised(name: str, rows: Array) -> Array:
    """What the gguf package makes of rows, as bfloat16's bits."""
    return bfloat16_bits(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]))
