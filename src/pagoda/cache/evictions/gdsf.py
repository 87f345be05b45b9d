"""What is used seldom and is quickly computed again goes first."""

from __future__ import annotations

from array import array

from pagoda.cache.evictions.lfu import LFU
from pagoda.cache.record import NO_BLOCK, BlockRecord

_ATTENTION_FROM = 64.0
"""Blocks before a block for which attention costs as much as all else in computing it again."""


class GDSF(LFU):
    """Greedy dual by size and frequency: all blocks are of one size, and deeper ones cost more.

        rank = uses · cost + age        cost: 1 + depth / 64, as attention reads all blocks before

    A block whose parent is gone counts as a first one; all else is as with LFU. Cherkasova:
    Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy, HP Labs
    HPL-98-69R1, 1998.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._depths = array("q", bytes(8 * num_blocks))
        """Of each block, how many come before it."""

    def publish(self, block_id: int, record: BlockRecord) -> None:
        super().publish(block_id, record)
        is_first = record.parent == NO_BLOCK
        self._depths[block_id] = 0 if is_first else self._depths[record.parent] + 1

    def _worth(self, block_id: int) -> float:
        return super()._worth(block_id) * (1 + self._depths[block_id] / _ATTENTION_FROM)
