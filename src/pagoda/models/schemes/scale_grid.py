"""Scales of a matrix's rows, columns or blocks, as [rows, groups] for any of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pagoda.models.schemes.span import Span
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
        cls, module: StoredModule, kind: str, shape: tuple[int, int], spans: Sequence[Span]
    ) -> ScaleGrid:
        """A tensor of scales for a matrix of such a shape, each for one of the config's `spans`.

        Ones that its shape would end with may be left out. Raises `ModelError` for a shape that
        none of the spans makes.
        """
        found = module.array(kind, *SCALES)
        for span in spans:
            if _is_shape_of(found.shape, span.grid(shape)):
                return cls(found.reshape(span.grid(shape)), *span.within(shape))
        grids = " or ".join(f"{span.grid(shape)} for {span.within(shape)}" for span in spans)
        limit = f"must be {grids} rows and columns of {shape}, as the config says"
        raise module.error(kind, found.shape, limit)

    @property
    def span(self) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        return self.num_rows, self.num_columns

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


def _is_shape_of(found: tuple[int, ...], grid: tuple[int, int]) -> bool:
    left_out = grid[len(found) :]
    return found == grid[: len(found)] and all(size == 1 for size in left_out)
