"""Blocks of GGUF's quantised types that CPUs compute with as they are, and the panels they lie in.

Numbers alone, neither Numba nor PyTorch, so that a planner can count them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

PANEL = 32
"""Rows of a weight that lie together, which are columns of a product."""


class BlockType(NamedTuple):
    """What a block of one type is."""

    num_values: int
    """Numbers of a row."""
    num_bytes: int


BLOCK_TYPES = MappingProxyType(
    {
        "Q4_0": BlockType(32, 18),
        "Q4_1": BlockType(32, 20),
        "Q5_0": BlockType(32, 22),
        "Q5_1": BlockType(32, 24),
        "Q8_0": BlockType(32, 34),
        "Q2_K": BlockType(256, 84),
        "Q3_K": BlockType(256, 110),
        "Q4_K": BlockType(256, 144),
        "Q5_K": BlockType(256, 176),
        "Q6_K": BlockType(256, 210),
        "IQ4_NL": BlockType(32, 18),
        "IQ4_XS": BlockType(256, 136),
    }
)
"""By their names in GGUF."""


def row_bytes(name: str, width: int) -> int:
    """Bytes of a row of `width` numbers, which are whole blocks."""
    block = BLOCK_TYPES[name]
    return width // block.num_values * block.num_bytes


def panel_bytes(name: str, width: int) -> int:
    """Bytes of a panel of such rows."""
    return PANEL * row_bytes(name, width)
