"""The map of a pool: sixteen bits for each cell, as a page reads them.

    bit   15 14   13 … 10   9 8     7 … 0
          lost    age       state   owner

`owner` is the tenant's number, 0 for nobody's; `state` a `BlockState`; `age` n, where the block
came into its state at least 2^n - 1 seconds ago; `lost` is 3 right after what a block held was
evicted, and falls to 0 in three seconds.

A cell is a block, or several where there are many: then it shows the one that is worth most.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MOST_CELLS = 12_288
LAST_OWNER = 255
"""Stands for all tenants from this number on."""
_OLDEST = 15
_LOST_S = (0.6, 1.5, 3.0)
_MOST_RUNS = 128
"""Of one sequence's blocks that are told."""

Cells = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class CacheMap:
    """How the blocks of a pool are told in cells."""

    num_blocks: int

    @property
    def blocks_per_cell(self) -> int:
        return -(-self.num_blocks // MOST_CELLS)

    @property
    def num_cells(self) -> int:
        return -(-self.num_blocks // self.blocks_per_cell)

    def cells(
        self,
        states: NDArray[np.uint8],
        owners: NDArray[np.int32],
        age_s: NDArray[np.float64],
        lost_s: NDArray[np.float64],
    ) -> Cells:
        """[num_cells], from what is told of each block: [num_blocks]."""
        worth: Cells = states.astype(np.uint16)
        worth <<= 4
        worth += (_OLDEST - _age(age_s)) * (states > 0)
        worth <<= 8
        worth += np.minimum(owners, LAST_OWNER).astype(np.uint16)
        lost: Cells = np.zeros(len(states), np.uint16)
        for seconds in _LOST_S:
            lost += lost_s < seconds
        most, lost = self._most(worth), self._most(lost)
        age = (_OLDEST - (most >> 8) % 16) * (most >= 1 << 12)
        cells: Cells = most % 256 + (most >> 12 << 8) + (age << 10) + (lost << 14)
        return cells

    def runs(self, tables: Sequence[NDArray[np.int32]]) -> list[list[int]]:
        """Of each table the cells of its blocks, in their order, as a first cell and a number of
        cells by turns.

        Holes, which are negative, are left out, and so is what comes after 128 runs.
        """
        if not tables:
            return []
        number = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        places = np.concatenate(tables)
        number, cells = number[places >= 0], places[places >= 0] // self.blocks_per_cell
        is_next = np.diff(number, prepend=-1) != 0
        is_new = is_next | (np.diff(cells, prepend=-1) != 0)
        number, cells, is_next = number[is_new], cells[is_new], is_next[is_new]
        firsts = np.flatnonzero(is_next | (np.diff(cells, prepend=-1) != 1))
        told = np.stack([cells[firsts], np.diff(firsts, append=len(cells))], axis=1)
        ends = np.searchsorted(number[firsts], np.arange(len(tables) + 1)).tolist()
        return [
            told[first : min(end, first + _MOST_RUNS)].ravel().tolist()
            for first, end in pairwise(ends)
        ]

    def _most(self, values: Cells) -> Cells:
        """The largest value in each cell."""
        size = self.blocks_per_cell
        if size == 1:
            return values
        filled = np.zeros(self.num_cells * size, np.uint16)
        filled[: len(values)] = values
        most: Cells = filled.reshape(-1, size).max(axis=1)
        return most


def packed(cells: Cells) -> str:
    """Low bytes, then high bytes, compressed by zlib, in base64."""
    planes = cells.astype("<u2").view(np.uint8).reshape(-1, 2).T
    return b64encode(zlib.compress(planes.tobytes(), 1)).decode()


def _age(seconds: NDArray[np.float64]) -> Cells:
    """[num_blocks] from 0 to 15."""
    exponents = np.frexp(np.maximum(seconds, 0) + 1)[1] - 1
    ages: Cells = np.minimum(exponents, _OLDEST).astype(np.uint16)
    return ages
