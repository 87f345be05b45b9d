"""Matrices in blocks of quantised types, a few rows at a time, until a device takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A tensor [rows, columns] whose rows can be had as blocks of a type."""

    name: str
    type: str
    """The name of its type in GGUF (Q4_K, F16, …), or of Pagoda's own (`kernels.block_types`)."""
    shape: tuple[int, int]
    nbytes: int
    """Bytes in the files."""
    blocks: Callable[[int, int], npt.NDArray[np.uint8]]
    """`count` rows from row `first` on, a multiple of 32: [count, bytes of a row], not to be
    written.

    Raises `ModelError` where they are made of numbers that the type cannot have.
    """
    read: Callable[[torch.Tensor], None]
    """Reads all rows into a tensor of the shape and any dtype, de-quantised."""
    release: Callable[[], None]
    """Gives the file's pages back, once the rows have been read."""


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
