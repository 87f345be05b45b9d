"""A tensor of a checkpoint, or rows of one, as part of a merged weight."""

from __future__ import annotations

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
    """How many of its numbers are rotated."""
    first: int = 0
    """The first of those."""


class HeadRows(NamedTuple):
    """Some rows of each head, of a tensor with more."""

    stored: int
    """Rows of a head in the tensor."""
    first: int
    """Of those, the first that is taken."""
    num_taken: int


class Part(NamedTuple):
    """Rows of a merged weight, and where they lie in a checkpoint.

    A named tuple is made the quickest: models with experts have tens of thousands of parts.
    """

    name: str
    """Of the tensor."""
    shape: tuple[int, ...]
    """Of the part: [rows], [rows, columns] or [heads, rows, columns].

    The last is never kept in the type of its file, since its heads are turned where they are used.
    """
    rotated: RotatedHeads | None = None
    """Set where rows of q and k have to be put into the order of the half-split rotation."""
    first_row: int = 0
    whole: tuple[int, ...] | None = None
    """Shape of the tensor, where it has more rows; all but the last axis count as rows."""
    held_as: str | None = None
    """Its dtype in memory where that is its own; None: as that of all others."""
    added: float = 0.0
    """What the file has added to the numbers."""
    step: int = 1
    """From one of the tensor's rows to the next."""
    is_turned: bool = False
    """The tensor is [any, columns, rows]: of each [columns, rows], columns are what counts as rows.
    """
    taken: HeadRows | None = None
    """None: all rows of a head."""
    is_one: bool = False
    """There is no such tensor: all its numbers are 1."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return self.shape if self.whole is None else self.whole

    def rows(self, first: int, count: int) -> Rows:
        """The tensor's rows that become `count` rows of the part, from row `first` on."""
        if self.taken is None and self.rotated is None:
            start = self.first_row + first * self.step
            return slice(start, start + count * self.step, self.step)
        wanted = np.arange(first, first + count)
        if self.taken is not None:
            head, row = np.divmod(wanted, self.taken.num_taken)
            return self.first_row + head * self.taken.stored + self.taken.first + row
        assert self.rotated is not None
        order = half_split_order(*self.rotated)
        head, row = np.divmod(wanted, len(order))
        return self.first_row + head * len(order) + order[row]

    def bounds(self, first: int, count: int) -> tuple[int, int]:
        """The lowest of `rows`, and the end of the highest."""
        rows = self.rows(first, count)
        if isinstance(rows, slice):
            return rows.start, rows.stop - rows.step + 1
        return int(rows.min()), int(rows.max()) + 1


Parts = tuple[Part, ...]
"""Those of one weight, one below the other."""
