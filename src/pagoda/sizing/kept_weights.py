"""Which matrices keep the quantised types of their files on CPUs, and the bytes that they take.

One judge for the engine, which packs them, and the planner, which counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pagoda.kernels.block_types import BLOCK_TYPES, PANEL, panel_bytes

KEPT_TYPES = frozenset(BLOCK_TYPES)
"""Names of the types that stay, those of GGUF and Pagoda's own."""


class MatrixPart(Protocol):
    """A tensor that is a matrix, or some of its rows."""

    @property
    def type(self) -> str:
        """The name of its type."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and numbers in a row."""
        ...


def are_kept(parts: Sequence[MatrixPart]) -> bool:
    """Whether parts, one below the other, may keep their types: each but the last fills panels."""
    fills = all(part.shape[0] % PANEL == 0 for part in parts[:-1])
    return fills and any(part.type in KEPT_TYPES for part in parts)


def matrix_bytes(parts: Sequence[MatrixPart], value_bytes: int) -> int:
    """Bytes of a matrix of such parts; numbers that are not kept take `value_bytes`."""
    keeps = are_kept(parts)
    return sum(_part_bytes(part, value_bytes, keeps) for part in parts)


def _part_bytes(part: MatrixPart, value_bytes: int, keeps: bool) -> int:
    rows, columns = part.shape
    if not keeps or part.type not in KEPT_TYPES:
        return rows * columns * value_bytes
    return -(-rows // PANEL) * panel_bytes(part.type, columns)
