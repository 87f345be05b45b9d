"""A tensor of a checkpoint, or rows of one, as part of a merged weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagoda.models.half_split import half_split_order

Rows = slice | npt.NDArray[np.int64]
"""Which rows of a tensor, as arrays are indexed."""


class RotatedHeads(NamedTuple):
    """Heads whose rows a file stores for a rotation of i with i + 1."""

    head_dim: int
    rotary_dim: int
    """How many of its first numbers are rotated."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a merged weight, and where they lie in a checkpoint."""

    name: str
    """Of the tensor."""
    shape: tuple[int, ...]
    """Of the part: [rows], or [rows, columns]."""
    rotated: RotatedHeads | None = None
    """Set where rows of q and k have to be put into the order of the half-split rotation."""
    first_row: int = 0
    whole: tuple[int, ...] | None = None
    """Shape of the tensor, where it has more rows; all but the last axis count as rows."""
    added: float = 0.0
    """What the file has added to the numbers."""
    step: int = 1
    """From one of the tensor's rows to the next."""
    is_turned: bool = False
    """The tensor is [any, columns, rows]: of each [columns, rows], columns are what counts as rows.
    """

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return self.shape if self.whole is None else self.whole

    def rows(self, first: int, count: int) -> Rows:
        """The tensor's rows that become `count` rows of the part, from row `first` on."""
        if self.rotated is None:
            start = self.first_row + first * self.step
            return slice(start, start + count * self.step, self.step)
        head_dim, rotary_dim = self.rotated
        wanted = np.arange(first, first + count)
        order = half_split_order(head_dim, rotary_dim)
        return self.first_row + wanted // head_dim * head_dim + order[wanted % head_dim]


Parts = tuple[Part, ...]
"""Those of one weight, one below the other."""
