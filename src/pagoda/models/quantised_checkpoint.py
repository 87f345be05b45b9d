"""The tensors of a model directory whose weights are quantised, as a source of weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagoda.kernels.block_types import PANEL
from pagoda.models.checkpoint import SafetensorsCheckpoint
from pagoda.models.part import Part
from pagoda.models.rows import as_rows, copy_rows
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
        shapes = {name: each.plain_shape or each.shape for name, each in found.matrices.items()}
        self.shapes: Mapping[str, tuple[int, ...]] = MappingProxyType(
            {**self._plain.shapes, **shapes}
        )
        self.spare = found.empty_biases
        if found.left_aside:
            logger.info(
                "weights alone are quantised here, neither activations nor the cache: %d scales "
                "such as %s are left aside",
                len(found.left_aside),
                found.left_aside[0],
            )

    def read(self, part: Part, target: torch.Tensor) -> None:
        """Copy a part into `target`, which has its shape, converting to its dtype."""
        matrix = self._matrices.get(part.name)
        if matrix is None:
            self._plain.read(part, target)
            return
        target = as_rows(target)
        num_rows, columns = target.shape
        step = max(1, _CHUNK_VALUES // columns // PANEL) * PANEL
        for first in range(0, num_rows, step):
            chunk = target[first : first + step]
            rows = _chosen(matrix.values, part, first, len(chunk))
            copy_rows(torch.from_numpy(rows), chunk)
        matrix.release()

    def stored(self, part: Part) -> StoredRows | None:
        """A matrix as its blocks have it; a plain one by the name of its dtype."""
        matrix = self._matrices.get(part.name)
        if matrix is None:
            return self._plain.stored(part)
        return StoredRows(
            name=part.name,
            type=matrix.type,
            shape=(part.shape[0], part.shape[1]),
            nbytes=matrix.nbytes * part.shape[0] // matrix.shape[0],
            blocks=partial(_chosen, matrix.blocks, part),
            read=partial(self.read, part),
            release=matrix.release,
        )


def _chosen(
    rows_of: Callable[[int, int], npt.NDArray[Any]], part: Part, first: int, count: int
) -> npt.NDArray[Any]:
    """Rows of a part, of a matrix that gives its own from a multiple of `PANEL` on."""
    rows = part.rows(first, count)
    numbers = np.arange(rows.start, rows.stop, rows.step) if isinstance(rows, slice) else rows
    start = int(numbers.min()) // PANEL * PANEL
    return rows_of(start, int(numbers.max()) + 1 - start)[numbers - start]
