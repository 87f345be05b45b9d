"""The tensors of a model directory whose weights are quantised, as a source of weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch

from pagoda.kernels.block_types import PANEL
from pagoda.models.checkpoint import SafetensorsCheckpoint
from pagoda.models.rows import copy_rows
from pagoda.models.schemes.quantised_tensors import QuantisedTensors
from pagoda.models.schemes.scheme import Scheme
from pagoda.models.stored_rows import StoredRows
from pagoda.models.stored_tensors import StoredTensor

logger = logging.getLogger("pagoda")

_CHUNK_VALUES = 1 << 20
"""Numbers that are de-quantised at once: 4 MB of float32."""


class QuantisedCheckpoint:
    """Matrices by the names that plain ones would have, and all that is plain beside them."""

    def __init__(self, scheme: Scheme, tensors: Mapping[str, StoredTensor]) -> None:
        found = QuantisedTensors.of(scheme, tensors)
        self._matrices = found.matrices
        self._plain = SafetensorsCheckpoint(found.plain)
        self.shapes: Mapping[str, tuple[int, ...]] = MappingProxyType(
            {**self._plain.shapes, **{name: each.shape for name, each in found.matrices.items()}}
        )
        self.spare = found.empty_biases
        if found.left_aside:
            logger.info(
                "weights alone are quantised here, neither activations nor the cache: %d scales "
                "such as %s are left aside",
                len(found.left_aside),
                found.left_aside[0],
            )

    def read(self, name: str, target: torch.Tensor) -> None:
        """Copy a tensor into `target`, which has its shape, converting to its dtype."""
        matrix = self._matrices.get(name)
        if matrix is None:
            self._plain.read(name, target)
            return
        num_rows, columns = matrix.shape
        step = max(1, _CHUNK_VALUES // columns // PANEL) * PANEL
        for first in range(0, num_rows, step):
            count = min(step, num_rows - first)
            rows = torch.from_numpy(matrix.values(first, count))
            copy_rows(rows, target[first : first + count])
        matrix.release()

    def read_rotary(self, name: str, target: torch.Tensor, head_dim: int) -> None:
        """Copy rows of q or k; here they are stored in the order they are used."""
        self.read(name, target)

    def stored(self, name: str, head_dim: int | None) -> StoredRows | None:
        """A matrix as its blocks have it; a plain one by the name of its dtype."""
        matrix = self._matrices.get(name)
        if matrix is None:
            return self._plain.stored(name, head_dim)
        return StoredRows(
            name=name,
            type=matrix.type,
            shape=matrix.shape,
            nbytes=matrix.nbytes,
            blocks=matrix.blocks,
            read=partial(self.read, name),
            release=matrix.release,
        )
