"""The numbers of GGUF's types: which are read, and how.

Types of floats are plain numbers, quantised ones are what the gguf package undoes. Whole numbers
are no weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from pagoda.errors import UnsupportedModelError
from pagoda.models.gguf_header import GGUFTensor

_WHOLE_NUMBERS = ("I8", "I16", "I32", "I64")


def require_read(tensors: Iterable[GGUFTensor]) -> None:
    """Raises `UnsupportedModelError` naming the first tensor of a type that is not read."""
    for tensor in tensors:
        name = tensor.type.name
        if name in _WHOLE_NUMBERS:
            limit = "whole numbers are no weights: floats and quantised types are covered"
            raise UnsupportedModelError(tensor.name, name, limit)
        if not _is_read(tensor.type):
            raise UnsupportedModelError(tensor.name, name, "this quantisation is not covered")


def as_float32(
    stored: npt.NDArray[np.uint8], kind: GGMLQuantizationType
) -> npt.NDArray[np.float32]:
    """Rows [rows, bytes of a row] of a type that is read, as numbers [rows, columns]."""
    if kind == GGMLQuantizationType.F64:
        with np.errstate(over="ignore"):  # what is no float32 becomes infinite, which is refused
            return stored.view(np.float64).astype(np.float32)
    return dequantize(stored, kind)


@cache
def _is_read(kind: GGMLQuantizationType) -> bool:
    """Told by a block of it: which quantised types there are is the gguf package's to say."""
    _, block_bytes = GGML_QUANT_SIZES[kind]
    try:
        as_float32(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
