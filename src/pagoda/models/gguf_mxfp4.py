"""GGUF's MXFP4, put into blocks of Pagoda's own type for it without losing a bit.

A block is 32 numbers: a byte e, which stands for 2^(e - 127), and 16 bytes, of which the lower
halves are the first 16 numbers. Formats: github.com/ggml-org/ggml, src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from pagoda.models.schemes.mxfp4 import CODING, GROUP, scale_bits
from pagoda.models.schemes.quantised_matrix import GroupedRows, QuantisedMatrix

MXFP4 = "MXFP4"
KEPT_AS = f"{CODING.code}_{CODING.scale}_g{GROUP}"
"""What it is kept as."""
_BLOCK_BYTES = 1 + GROUP // 2

Bytes = npt.NDArray[np.uint8]


def mxfp4_blocks(
    name: str, shape: tuple[int, int], stored: Callable[[int, int], Bytes]
) -> Callable[[int, int], Bytes]:
    """Rows of a tensor called `name` in blocks of `KEPT_AS`, as `StoredRows.blocks` gives them.

    `stored`: the same rows as the file has them. Those of a scale that no number of bfloat16 could
    be made with raise `ModelError`.
    """
    return QuantisedMatrix(name, shape, CODING, (), name, partial(_rows, stored)).blocks


def _rows(stored: Callable[[int, int], Bytes], first: int, count: int) -> GroupedRows:
    blocks = stored(first, count).reshape(count, -1, _BLOCK_BYTES)
    halves = blocks[..., 1:]
    numbers = np.concatenate([halves & 15, halves >> 4], axis=-1)
    codes = numbers[..., ::2] | numbers[..., 1::2] << 4
    return GroupedRows(codes.reshape(count, -1), scale_bits(blocks[..., 0]))
