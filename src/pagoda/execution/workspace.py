"""The activations of a step, in memory that every step uses again."""

from __future__ import annotations

import numpy as np

from pagoda.kernels.array import Array


class Workspace:
    """Arrays by name, which grow with the largest step so far."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def array(self, name: str, rows: int, width: int, dtype: np.dtype[np.generic]) -> Array:
        """[rows, width], contiguous, with whatever is in it."""
        size = rows * width
        found = self._arrays.get(name)
        if found is None or len(found) < size or found.dtype != dtype:
            found = self._arrays[name] = np.empty(size, dtype)
        return found[:size].reshape(rows, width)
