"""Scales of a matrix's rows, columns or blocks, as [rows, groups] for any of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pagoda.models.schemes.stored_module import SCALES, Array, StoredModule


@dataclass(frozen=True, slots=True)
class ScaleGrid:
    """One scale for `num_rows` · `num_columns` numbers."""

    scales: Array
    """[⌈rows / num_rows⌉, ⌈columns / num_columns⌉]"""
    num_rows: int
    num_columns: int

    @classmethod
    def of(
        cls, module: StoredModule, kind: str, shape: tuple[int, int],
        block: tuple[int, int] | None = None,
    ) -> ScaleGrid:  # fmt: skip
        """A tensor of scales for a matrix of such a shape, of `block` where these are blocks.

        It may be one scale, one for each row, for groups of each row, or for blocks. Raises
        `ModelError` where its shape is none of these.
        """
        found = module.array(kind, *SCALES)
        rows, columns = shape
        if found.size == 1:
            return cls(found.reshape(1, 1), rows, columns)
        grid = found[:, None] if found.ndim == 1 else found
        if block is not None and grid.shape == (-(-rows // block[0]), -(-columns // block[1])):
            return cls(grid, *block)
        if grid.ndim == 2 and len(grid) == rows and columns % grid.shape[1] == 0:
            return cls(grid, 1, columns // grid.shape[1])
        limit = f"must be one, or for each row or group of a matrix {shape}"
        blocks = f", or for blocks of {block}" if block else ""
        raise module.error(kind, found.shape, limit + blocks)

    def zeros(self, module: StoredModule, kind: str) -> ScaleGrid:
        """Zero points of int8, one for each scale. Raises `ModelError` for more or fewer."""
        found = module.array(kind, "I8")
        if found.size != self.scales.size:
            limit = f"there must be one for each scale, {self.scales.shape}"
            raise module.error(kind, found.shape, limit)
        return replace(self, scales=found.reshape(self.scales.shape))

    def rows(self, first: int, count: int) -> Array:
        """Those of some rows, [count, groups]."""
        return self.scales[np.arange(first, first + count) // self.num_rows]
