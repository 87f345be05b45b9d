"""Reading safetensors into PyTorch's tensors: one file or shards with an index, memory-mapped.

The files are read directly, by their headers (`pagoda.models.stored_tensors`), because the pages of
a tensor have to be given back once it is copied: else a loading process would hold the whole file
beside its copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from pagoda.errors import UnsupportedModelError
from pagoda.models.mapped import release_pages
from pagoda.models.rows import copy_rows
from pagoda.models.stored_rows import StoredRows
from pagoda.models.stored_tensors import DTYPES, StoredTensor

_CHUNK_BYTES = 1 << 25
"""What is copied before its pages are given back."""


class SafetensorsCheckpoint:
    """The tensors of a model directory, by what their files' headers say."""

    spare: frozenset[str] = frozenset()

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = tensors
        self.shapes: Mapping[str, tuple[int, ...]] = MappingProxyType(
            {name: tensor.shape for name, tensor in self._tensors.items()}
        )

    def read(self, name: str, target: torch.Tensor) -> None:
        """Copy a tensor into `target`, which has its shape, converting to its dtype."""
        tensor = self._tensors[name]
        if tensor.dtype not in DTYPES:
            raise UnsupportedModelError(name, tensor.dtype, f"covered are {', '.join(DTYPES)}")
        dtype = getattr(torch, DTYPES[tensor.dtype])
        stored = torch.frombuffer(
            tensor.data, dtype=dtype, count=math.prod(tensor.shape), offset=tensor.start
        ).view(tensor.shape)
        if tensor.size_bytes <= _CHUNK_BYTES:
            copy_rows(stored, target)
            release_pages(tensor.data, tensor.start, tensor.size_bytes)
            return
        row_bytes = tensor.size_bytes // tensor.shape[0]
        step = max(1, _CHUNK_BYTES // row_bytes)
        for first in range(0, tensor.shape[0], step):
            rows = stored[first : first + step]
            target[first : first + step].copy_(rows)
            release_pages(tensor.data, tensor.start + first * row_bytes, rows.nbytes)

    def read_rotary(self, name: str, target: torch.Tensor, head_dim: int) -> None:
        """Copy rows of q or k; here they are stored in the order they are used."""
        self.read(name, target)

    def stored(self, name: str, head_dim: int | None) -> StoredRows | None:
        """A matrix as the file stores it: of type BF16, F16, F32 or F64."""
        tensor = self._tensors[name]
        if len(tensor.shape) != 2:
            return None
        return StoredRows(
            name=name,
            type=tensor.dtype,
            shape=(tensor.shape[0], tensor.shape[1]),
            nbytes=tensor.size_bytes,
            blocks=partial(_rows, tensor),
            read=partial(self.read, name),
            release=partial(release_pages, tensor.data, tensor.start, tensor.size_bytes),
        )


def _rows(tensor: StoredTensor, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Rows as they lie in the file, not copied."""
    row_bytes = tensor.size_bytes // tensor.shape[0]
    start = tensor.start + first * row_bytes
    stored = np.frombuffer(tensor.data, np.uint8, count * row_bytes, start)
    return stored.reshape(count, row_bytes)
