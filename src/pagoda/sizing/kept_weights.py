"""Which matrices keep the quantised types of their file on CPUs, and the bytes that they take.

One judge for the engine, which packs them, and the planner, which counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Protocol

PANEL_ROWS = 32
"""Rows of a matrix that lie together; the last ones are filled up to so many."""

KEPT_TYPES = MappingProxyType(
    {
        "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
        "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176),
        "Q6_K": (256, 210), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136),
    }
)  # fmt: skip
"""GGUF's names → numbers in a block, and its bytes."""


class MatrixPart(Protocol):
    """A tensor that is a matrix, or some of its rows."""

    @property
    def type(self) -> str:
        """GGUF's name of its type."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and numbers in a row."""
        ...


def are_kept(parts: Sequence[MatrixPart]) -> bool:
    """Whether parts, one below the other, may keep their types: each but the last fills panels."""
    fills = all(part.shape[0] % PANEL_ROWS == 0 for part in parts[:-1])
    return fills and any(part.type in KEPT_TYPES for part in parts)


def matrix_bytes(parts: Sequence[MatrixPart], value_bytes: int) -> int:
    """Bytes of a matrix of such parts; numbers that are not kept take `value_bytes`."""
    keeps = are_kept(parts)
    return sum(_part_bytes(part, value_bytes, keeps) for part in parts)


def _part_bytes(part: MatrixPart, value_bytes: int, keeps: bool) -> int:
    rows, columns = part.shape
    if not keeps or part.type not in KEPT_TYPES:
        return rows * columns * value_bytes
    block_values, block_bytes = KEPT_TYPES[part.type]
    return -(-rows // PANEL_ROWS) * PANEL_ROWS * columns // block_values * block_bytes
