"""The tensors of a GGUF file as a source of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from pagoda.models.gguf import GGUFFile
from pagoda.models.gguf_mxfp4 import MXFP4, mxfp4_blocks
from pagoda.models.part import Part
from pagoda.models.rows import as_rows, copy_rows
from pagoda.models.stored_rows import StoredRows

_CHUNK_VALUES = 1 << 20
"""Numbers that are de-quantised at once: 4 MB of float32."""


class GGUFCheckpoint:
    """De-quantises tensors on the way into the weights, a few rows at a time."""

    spare: frozenset[str] = frozenset()

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.shapes: Mapping[str, tuple[int, ...]] = MappingProxyType(
            {name: tensor.shape for name, tensor in file.tensors.items()}
        )

    def read(self, part: Part, target: torch.Tensor) -> None:
        """Copy a part into `target`, which has its shape, converting to its dtype."""
        if target.dim() == 1:
            vector = self._file.read_rows(part.name, slice(None)).reshape(-1)
            copy_rows(torch.from_numpy(vector[part.rows(0, len(target))]), target)
            return
        if part.is_turned:
            self._read_turned(part, target)
            return
        target = as_rows(target)
        num_rows, columns = target.shape
        step = max(1, _CHUNK_VALUES // columns)
        for first in range(0, num_rows, step):
            chunk = target[first : first + step]
            rows = self._file.read_rows(part.name, part.rows(first, len(chunk)))
            copy_rows(torch.from_numpy(rows), chunk)
        self._file.release(part.name)

    def _read_turned(self, part: Part, target: torch.Tensor) -> None:
        """[heads, rows, columns], of a tensor [heads, columns, rows]."""
        columns = part.stored_shape[1]
        for number, matrix in enumerate(target):
            rows = slice(number * columns, (number + 1) * columns)
            copy_rows(torch.from_numpy(self._file.read_rows(part.name, rows)).T, matrix)
        self._file.release(part.name)

    def stored(self, part: Part) -> StoredRows | None:
        """A matrix as the file stores it."""
        tensor = self._file.tensors[part.name]
        if len(part.shape) != 2:
            return None
        shape = (part.shape[0], part.shape[1])
        blocks: Callable[[int, int], npt.NDArray[np.uint8]] = partial(self._blocks, part)
        if tensor.type.name == MXFP4:
            blocks = mxfp4_blocks(part.name, shape, blocks)
        return StoredRows(
            name=part.name,
            type=self._file.kept_type(part.name),
            shape=shape,
            nbytes=part.shape[0] * tensor.row_bytes,
            blocks=blocks,
            read=partial(self.read, part),
            release=partial(self._file.release, part.name),
        )

    def _blocks(self, part: Part, first: int, count: int) -> npt.NDArray[np.uint8]:
        return self._file.stored_rows(part.name, part.rows(first, count))
