"""Segmented least recently used: what was used once goes before what was used again.

    add, first time ──> | probation: oldest … youngest |  evicted first
    add, after a hit ─> | protected: oldest … youngest |  evicted when nothing is on probation
                          oldest ──> back on probation, where it would be more than its share

A run of prompts that nobody asks again passes through probation and leaves shared prefixes alone,
which it would push out under LRU. After Karedla, Love, Wherry: Caching strategies to improve disk
system performance, Computer 27(3), 1994.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.record import BlockRecord

_MOST_PROTECTED = 0.8
"""Largest part of the blocks it holds that may be protected."""


class SegmentedLRU:
    """Blocks that were hit are protected, up to their share; within a segment, LRU."""

    def __init__(self) -> None:
        self._probation: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._reused: set[int] = set()
        """Blocks that were hit since their content is what it is, held or referenced."""

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """What a block holds does not matter here."""

    def add(self, block_id: int) -> None:
        if block_id not in self._reused:
            self._probation[block_id] = None
            return
        self._protected[block_id] = None
        if len(self._protected) > max(1, _MOST_PROTECTED * len(self)):
            oldest, _ = self._protected.popitem(last=False)
            self._reused.remove(oldest)
            self._probation[oldest] = None

    def hit(self, block_id: int) -> None:
        del self._segment_of(block_id)[block_id]
        self._reused.add(block_id)

    def renew(self, block_id: int) -> None:
        self._segment_of(block_id).move_to_end(block_id)

    def forget(self, block_id: int) -> None:
        self._segment_of(block_id).pop(block_id, None)
        self._reused.discard(block_id)

    def evict(self) -> int:
        if self._probation:
            return self._probation.popitem(last=False)[0]
        block_id, _ = self._protected.popitem(last=False)
        self._reused.remove(block_id)
        return block_id

    def _segment_of(self, block_id: int) -> OrderedDict[int, None]:
        return self._protected if block_id in self._reused else self._probation

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def __iter__(self) -> Iterator[int]:
        """In the order of eviction."""
        yield from self._probation
        yield from self._protected
