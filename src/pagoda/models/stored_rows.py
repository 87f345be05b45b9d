"""Matrices that stay as their file stores them, until a device takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A tensor [rows, columns] in its file, mapped into memory."""

    name: str
    type: str
    """The name of its type in GGUF: Q4_K, F16, …"""
    shape: tuple[int, int]
    rows: npt.NDArray[np.uint8]
    """[rows, bytes of a row], read-only."""
    order: npt.NDArray[np.int64] | None
    """Which of these rows comes where; None: as they are."""
    read: Callable[[torch.Tensor], None]
    """De-quantises all rows, in order, into a tensor of the shape and any dtype."""
    release: Callable[[], None]
    """Gives the file's pages back, once the rows have been read."""

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.rows.nbytes


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix [out, in] of parts one below the other, of which some stay as stored."""

    parts: tuple[StoredRows | torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the file of what is stored, and of tensors."""
        return sum(part.nbytes for part in self.parts)


Matrix = torch.Tensor | StoredMatrix
"""Of one dtype and contiguous, or as the file stores it."""
