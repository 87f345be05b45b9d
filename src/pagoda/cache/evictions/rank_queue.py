"""Blocks by rank, of which the one of the least rank goes first."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush


class RankQueue:
    """A heap of blocks. Of equal ranks the one that was put first goes first.

    An operation takes O(log n) on the average for n blocks: what was removed stays in the heap
    until it comes up, or until such are more than half of it.
    """

    def __init__(self, num_blocks: int) -> None:
        self._heap: list[tuple[float, int, int]] = []
        """Rank, number of the put, block."""
        self._puts = array("q", bytes(8 * num_blocks))
        """Of each block, the number of its put; 0: it is not here."""
        self._num_puts = 0
        self._num_held = 0

    def put(self, block_id: int, rank: float) -> None:
        """A block that is not here."""
        self._num_puts += 1
        self._num_held += 1
        self._puts[block_id] = self._num_puts
        heappush(self._heap, (rank, self._num_puts, block_id))

    def remove(self, block_id: int) -> None:
        """Take a block out. Raises KeyError if it is not here."""
        if not self._puts[block_id]:
            raise KeyError(block_id)
        self._puts[block_id] = 0
        self._num_held -= 1
        if len(self._heap) > 2 * self._num_held + 64:
            self._heap = [entry for entry in self._heap if self._is_here(entry)]
            heapify(self._heap)

    def pop(self) -> tuple[int, float]:
        """Take out the block of the least rank; it and its rank. Raises KeyError: none is here."""
        while self._heap:
            entry = heappop(self._heap)
            if self._is_here(entry):
                rank, _, block_id = entry
                self._puts[block_id] = 0
                self._num_held -= 1
                return block_id, rank
        raise KeyError("no block is here")

    def _is_here(self, entry: tuple[float, int, int]) -> bool:
        return self._puts[entry[2]] == entry[1]

    def __contains__(self, block_id: int) -> bool:
        return self._puts[block_id] != 0

    def __len__(self) -> int:
        return self._num_held

    def __iter__(self) -> Iterator[int]:
        """The least rank first."""
        return iter([entry[2] for entry in sorted(filter(self._is_here, self._heap))])
