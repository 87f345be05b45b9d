"""How queries and keys come in groups where both are whole numbers.

Levels of codes are whole numbers of eight bits, so that sums of their products with whole numbers
are exact, in whatever order. A query is rounded to steps of its own: numbers at its front, where a
basis has what queries ask for most, to sixteen bits, and the others to eight. A row of its groups
of four bytes:

    wide      [wide / 2] pairs of int16
    narrow    four int8 in each group, number 0, 2, 1 and 3 of the next four (`LANE_BY_LANE`)
    start     int32: -`RAISED_BY` · the sum of the narrow ones

Keys have the same groups but for the start, the narrow ones raised by `RAISED_BY`: instructions for
bytes take one factor without a sign.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from pagoda.kernels.cpu.byte_products import MOST_CODE
from pagoda.kernels.cpu.vector import LANES, UNIT
from pagoda.kernels.vector_code import VectorCode

RAISED_BY = 128
MOST_NARROW = MOST_CODE
MOST_WIDE = 128 * MOST_NARROW
TAKES_WHOLE = UNIT.long_tables and UNIT.byte_products == 4
"""This CPU looks up and multiplies levels as bytes."""


class WholeForm(NamedTuple):
    """The groups of a head."""

    head_dim: int
    wide: int
    """Numbers at the front that have sixteen bits: whole chunks."""

    @property
    def num_pairs(self) -> int:
        """Groups of wide numbers."""
        return self.wide // 2

    @property
    def num_groups(self) -> int:
        """All groups of a key, and those of a query before its start."""
        return self.num_pairs + (self.head_dim - self.wide) // 4


def whole_form(head_dim: Any, wide: Any) -> WholeForm | None:
    """Of a head size and `PageForm.wide`, as types that Numba has for these constants."""
    return WholeForm(head_dim.literal_value, wide.literal_value) if wide != types.none else None


def meets_whole(code: VectorCode, block_size: int) -> bool:
    """Whether queries can be whole where they meet keys of a code."""
    return TAKES_WHOLE and code.numbers == "levels" and block_size % LANES == 0


def key_groups(paired: bool, head_dim: int, wide: int | None) -> int:
    """Groups of a key that is no code, in a `PageForm` with these."""
    return head_dim // (1 + paired) if wide is None else WholeForm(head_dim, wide).num_groups
