"""Addresses that tables for compiled code have, and the arrays that lie there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.kernels.array import Array

LOG2_E = 1.4426950408889634


class Addresses:
    """Arrays that tables have addresses of and nobody else holds."""

    def __init__(self) -> None:
        self.kept: list[Array] = []

    def of(self, values: Array) -> int:
        self.kept.append(values)
        return int(values.ctypes.data)

    def one(self, number: float) -> int:
        return self.of(np.array([number], np.float32))

    def floats(self, values: torch.Tensor) -> int:
        return self.of(values.float().contiguous().numpy())

    def bias(self, values: torch.Tensor | None, size: int) -> int:
        """Filled up with zeros to as many numbers, 0 where that is none."""
        if not size:
            return 0
        whole = torch.zeros(size)
        if values is not None:
            whole[: len(values)] = values
        return self.floats(whole)

    def biases(self, values: torch.Tensor | None, count: int, size: int) -> list[int]:
        """One for each of `count`, [count, size]; the same zeros for all where there are none."""
        if values is None:
            return [self.bias(None, size)] * count
        start = self.floats(values)
        return [start + number * size * np.float32().nbytes for number in range(count)]

    def norm(self, values: torch.Tensor | None, offset: float = 0.0) -> int:
        """0 where there is none."""
        return 0 if values is None else self.floats(values.float() + offset)

    def logits(self, values: Sequence[float]) -> int:
        """In powers of two."""
        return self.of(np.array(values, np.float32) * np.float32(LOG2_E))


def address_of(weight: PanelMatrix | None) -> int:
    """Of its table of panels; 0 where there is none."""
    return 0 if weight is None else weight.address


def height_of(weight: PanelMatrix | None) -> int:
    """Its rows; 0 where there is none."""
    return 0 if weight is None else weight.shape[0]
