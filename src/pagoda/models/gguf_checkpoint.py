"""The tensors of a GGUF file as a source of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from pagoda.models.gguf import GGUFFile
from pagoda.models.gguf_config import gguf_architecture
from pagoda.models.half_split import half_split, half_split_order
from pagoda.models.rows import copy_rows
from pagoda.models.stored_rows import StoredRows

Values = npt.NDArray[np.float32]

_CHUNK_VALUES = 1 << 20
"""Numbers that are de-quantised at once: 4 MB of float32."""


class GGUFCheckpoint:
    """De-quantises tensors on the way into the weights, a few rows at a time."""

    spare: frozenset[str] = frozenset()

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._interleaved = gguf_architecture(file).interleaved
        self.shapes: Mapping[str, tuple[int, ...]] = MappingProxyType(
            {name: tensor.shape for name, tensor in file.tensors.items()}
        )

    def read(self, name: str, target: torch.Tensor) -> None:
        """Copy a tensor into `target`, which has its shape, converting to its dtype."""
        self._read(name, target, 1, _as_stored)

    def read_rotary(self, name: str, target: torch.Tensor, head_dim: int) -> None:
        """Copy rows of q or k, put into the order of the half-split rotation."""
        order = half_split_order(head_dim, head_dim)
        reorder = partial(half_split, order=order) if self._interleaved else _as_stored
        self._read(name, target, head_dim, reorder)

    def stored(self, name: str, head_dim: int | None) -> StoredRows | None:
        """A matrix as the file stores it; `head_dim`: in the order of `read_rotary`."""
        tensor = self._file.tensors[name]
        if len(tensor.shape) != 2:
            return None
        blocks, read = partial(self._file.stored_rows, name), partial(self.read, name)
        if head_dim is not None:
            read = partial(self.read_rotary, name, head_dim=head_dim)
            if self._interleaved:
                in_head = half_split_order(head_dim, head_dim)
                order = half_split(np.arange(tensor.shape[0]), in_head)
                blocks = partial(self._chosen_rows, name, order)
        return StoredRows(
            name=name,
            type=tensor.type.name,
            shape=(tensor.shape[0], tensor.shape[1]),
            nbytes=tensor.size_bytes,
            blocks=blocks,
            read=read,
            release=partial(self._file.release, name),
        )

    def _chosen_rows(
        self, name: str, order: npt.NDArray[np.int64], first: int, count: int
    ) -> npt.NDArray[np.uint8]:
        """Rows as stored, of an order of all of them."""
        rows = self._file.stored_rows(name, 0, len(order))
        return rows[order[first : first + count]]

    def _read(
        self, name: str, target: torch.Tensor, multiple: int, reorder: Callable[[Values], Values]
    ) -> None:
        """De-quantise chunks of a whole `multiple` of rows, reorder and copy them."""
        if target.dim() == 1:
            vector = reorder(self._file.read_rows(name, 0, 1)[0])
            copy_rows(torch.from_numpy(vector), target)
            return
        num_rows, columns = target.shape
        step = max(1, _CHUNK_VALUES // columns // multiple) * multiple
        for first in range(0, num_rows, step):
            count = min(step, num_rows - first)
            rows = reorder(self._file.read_rows(name, first, count))
            copy_rows(torch.from_numpy(rows), target[first : first + count])
        self._file.release(name)


def _as_stored(rows: Values) -> Values:
    return rows
