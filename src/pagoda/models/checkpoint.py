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
from pagoda.models.part import Part
from pagoda.models.rows import as_rows, copy_rows
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

    def read(self, part: Part, target: torch.Tensor) -> None:
        """Copy a part into `target`, which has its shape, converting to its dtype."""
        tensor = self._tensors[part.name]
        if tensor.dtype not in DTYPES:
            raise UnsupportedModelError(part.name, tensor.dtype, f"covered are {', '.join(DTYPES)}")
        dtype, target = getattr(torch, DTYPES[tensor.dtype]), as_rows(target)
        step = max(1, _CHUNK_BYTES // _row_bytes(tensor, part))
        for first in range(0, len(target), step):
            chunk = target[first : first + step]
            rows = torch.from_numpy(_rows(tensor, part, first, len(chunk)))
            copy_rows(rows.view(dtype).view(chunk.shape), chunk)
            release_pages(tensor.data, *_span(tensor, part, first, len(chunk)))

    def stored(self, part: Part) -> StoredRows | None:
        """A matrix as the file stores it: of type BF16, F16, F32 or F64."""
        tensor = self._tensors[part.name]
        if len(part.shape) != 2:
            return None
        num_rows, num_columns = part.shape
        return StoredRows(
            name=part.name,
            type=tensor.dtype,
            shape=(num_rows, num_columns),
            nbytes=num_rows * _row_bytes(tensor, part),
            blocks=partial(_rows, tensor, part),
            read=partial(self.read, part),
            release=partial(release_pages, tensor.data, *_span(tensor, part, 0, num_rows)),
        )


def _rows(tensor: StoredTensor, part: Part, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Rows as they lie in the file, not copied where they are in order."""
    stored = np.frombuffer(tensor.data, np.uint8, tensor.size_bytes, tensor.start)
    if part.is_turned:
        columns, rows = tensor.shape[-2:]
        number, start = divmod(part.first_row, rows)
        matrices = stored.view(f"V{_item_bytes(tensor)}").reshape(-1, columns, rows)
        turned = matrices[number].T[start :: part.step]
        return np.ascontiguousarray(turned[first : first + count]).view(np.uint8)
    return stored.reshape(-1, _row_bytes(tensor, part))[part.rows(first, count)]


def _span(tensor: StoredTensor, part: Part, first: int, count: int) -> tuple[int, int]:
    """Where in the file what such rows are read from begins, and its bytes."""
    if part.is_turned:
        matrix_bytes = math.prod(tensor.shape[-2:]) * _item_bytes(tensor)
        return tensor.start + part.first_row // tensor.shape[-1] * matrix_bytes, matrix_bytes
    low, end = part.bounds(first, count)
    row_bytes = _row_bytes(tensor, part)
    return tensor.start + low * row_bytes, (end - low) * row_bytes


def _row_bytes(tensor: StoredTensor, part: Part) -> int:
    """A part of one axis has a number in each row."""
    return _item_bytes(tensor) * (part.shape[-1] if len(part.shape) > 1 else 1)


def _item_bytes(tensor: StoredTensor) -> int:
    return tensor.size_bytes // math.prod(tensor.shape)
