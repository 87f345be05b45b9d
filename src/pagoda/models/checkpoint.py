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
        dtype = getattr(torch, DTYPES[tensor.dtype])
        stored = torch.frombuffer(
            tensor.data, dtype=dtype, count=math.prod(tensor.shape), offset=tensor.start
        )
        if part.is_turned:
            columns, rows = tensor.shape[-2:]
            number, first = divmod(part.first_row, rows)
            turned = stored.view(-1, columns, rows)[number].T[first :: part.step]
            copy_rows(turned[: part.shape[0]], target)
            return
        stored, target = stored.view(-1, *part.shape[1:][-1:]), as_rows(target)
        row_bytes = tensor.size_bytes // len(stored)
        step = max(1, _CHUNK_BYTES // row_bytes)
        for first in range(0, len(target), step):
            chunk = target[first : first + step]
            copy_rows(stored[part.rows(first, len(chunk))], chunk)
            start = tensor.start + (part.first_row + first) * row_bytes
            release_pages(tensor.data, start, len(chunk) * row_bytes)

    def stored(self, part: Part) -> StoredRows | None:
        """A matrix as the file stores it: of type BF16, F16, F32 or F64."""
        tensor = self._tensors[part.name]
        if len(part.shape) != 2:
            return None
        size_bytes = tensor.size_bytes // math.prod(tensor.shape) * math.prod(part.shape)
        start = tensor.start + part.first_row * (size_bytes // part.shape[0])
        return StoredRows(
            name=part.name,
            type=tensor.dtype,
            shape=(part.shape[0], part.shape[1]),
            nbytes=size_bytes,
            blocks=partial(_rows, tensor, part),
            read=partial(self.read, part),
            release=partial(release_pages, tensor.data, start, size_bytes),
        )


def _rows(tensor: StoredTensor, part: Part, first: int, count: int) -> npt.NDArray[np.uint8]:
    """Rows as they lie in the file, not copied where they are in order."""
    stored = np.frombuffer(tensor.data, np.uint8, tensor.size_bytes, tensor.start)
    if part.is_turned:
        columns, rows = tensor.shape[-2:]
        number, start = divmod(part.first_row, rows)
        item = tensor.size_bytes // math.prod(tensor.shape)
        turned = stored.view(f"V{item}").reshape(-1, columns, rows)[number].T[start :: part.step]
        return np.ascontiguousarray(turned[first : first + count]).view(np.uint8)
    return stored.reshape(math.prod(tensor.shape[:-1]), -1)[part.rows(first, count)]
