"""The activations of a step, in memory that every step uses again."""

from __future__ import annotations

import numpy as np

from pagoda.kernels.array import Array

LINE_BYTES = 64


class Workspace:
    """Arrays by name, which grow with the largest step so far; each begins with a cache line."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._addresses: dict[str, int] = {}

    def array(self, name: str, rows: int, width: int, dtype: np.dtype[np.generic]) -> Array:
        """[rows, width], contiguous, with whatever is in it."""
        self.address(name, rows, width, dtype)
        return self._arrays[name][: rows * width].reshape(rows, width)

    def address(self, name: str, rows: int, width: int, dtype: np.dtype[np.generic]) -> int:
        """Where that array lies, until one of the name has to be larger."""
        size = rows * width
        found = self._arrays.get(name)
        if found is None or len(found) < size or found.dtype != dtype:
            memory = np.empty(size * dtype.itemsize + LINE_BYTES, np.uint8)
            start = -memory.ctypes.data % LINE_BYTES
            found = self._arrays[name] = memory[start : start + size * dtype.itemsize].view(dtype)
            self._addresses[name] = found.ctypes.data
        return self._addresses[name]
