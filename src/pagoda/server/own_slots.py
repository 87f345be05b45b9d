"""Where a tenant sees its own blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class OwnSlots:
    """Places on a map for the blocks of one tenant, the first free ones in the order of coming.

    Which of the pool's blocks they are, or in which order these lie, would tell what others have
    beside them. A block keeps its place for as long as it is the tenant's.
    """

    def __init__(self, num_blocks: int) -> None:
        self._slots = np.full(num_blocks, -1, np.int32)
        """By block; -1: not the tenant's."""
        self._is_taken = np.zeros(num_blocks, bool)

    def slots_of(self, block_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Places of blocks; -1 for those that have none, and for holes."""
        slots: NDArray[np.int32] = np.where(block_ids < 0, -1, self._slots[block_ids])
        return slots

    def update(
        self,
        is_own: NDArray[np.bool_],
        tables: Sequence[NDArray[np.int32]],
        since: NDArray[np.float64],
    ) -> None:
        """Which blocks are the tenant's from now on, and since when: [num_blocks].

        `tables`: of its sequences, whose blocks come in their order, and before all others.
        """
        gone = np.flatnonzero(~is_own & (self._slots >= 0))
        self._is_taken[self._slots[gone]] = False
        self._slots[gone] = -1
        come = np.flatnonzero(is_own & (self._slots < 0))
        if not len(come):
            return
        come = come[np.lexsort((since[come], self._turns(tables)[come]))]
        free = np.flatnonzero(~self._is_taken)[: len(come)]
        self._slots[come] = free
        self._is_taken[free] = True

    def _turns(self, tables: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
        """[num_blocks]: where a block comes first in the tables."""
        turns = np.full(len(self._slots), np.iinfo(np.int64).max)
        if tables:
            held = np.concatenate(tables)[::-1]  # of several places the last one written stays
            turns[held[held >= 0]] = np.flatnonzero(held >= 0)[::-1]
        return turns
