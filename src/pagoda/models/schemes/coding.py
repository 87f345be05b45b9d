"""How the numbers of a matrix are coded, and the type of block that this makes."""

from __future__ import annotations

from typing import NamedTuple

from pagoda.kernels.block_types import GROUPED_TYPES, GROUPS, GroupedType


class Coding(NamedTuple):
    """A code for each number and a scale for each group of them."""

    code: str
    """One of `CODES`."""
    scale: str
    """One of `SCALE_BYTES`."""
    group: int
    """Numbers of a row, one after the other, that share a scale; the last ones may be fewer."""

    def block_type(self, columns: int) -> GroupedType | None:
        """With the longest blocks that a group and a row consist of; None: there is none."""
        lengths = (size for size in GROUPS if not (self.group % size or columns % size))
        return GROUPED_TYPES.get(f"{self.code}_{self.scale}_g{next(lengths, 0)}")

    def type(self, columns: int) -> str:
        """The block type's name, or that of the numbers alone."""
        found = self.block_type(columns)
        return f"{self.code}_{self.scale}" if found is None else str(found)
