"""A short queue for newcomers and a long one for what was used again while it was there."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.evictions.content_key import content_key
from pagoda.cache.record import BlockRecord

_SMALL = 0.1
"""Part of the pool that the short queue may take before it gives up blocks."""
_MOST_USES = 3


class S3FIFO:
    """Three queues, first in, first out: short, long, and ghosts of the short one.

        new ──> short ── used since ──> long ── used since ──> long again, with a use less
                  └── not used: a ghost       └── not used: gone
        a ghost that is published again ──> long

    In the paper a hit moves nothing. Here a block that is hit leaves the policy until its last
    reference is dropped, and joins the end of its queue then. Uses count up to 3, so an eviction
    passes a block 3 times at most: O(1) on the average. Ghosts are as many as blocks at most. Yang,
    Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction, SOSP 2023.
    """

    def __init__(self, num_blocks: int) -> None:
        self._most_short = max(1, int(_SMALL * num_blocks))
        self._short: OrderedDict[int, None] = OrderedDict()
        self._long: OrderedDict[int, None] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._most_ghosts = num_blocks
        self._keys = array("Q", bytes(8 * num_blocks))
        self._is_long = bytearray(num_blocks)
        """Of each block, whether it belongs to the long queue, held or referenced."""
        self._num_uses = bytearray(num_blocks)
        """Of each block, since it came into its queue."""

    def publish(self, block_id: int, record: BlockRecord) -> None:
        key = content_key(record)
        self._keys[block_id] = key
        self._num_uses[block_id] = 0
        self._is_long[block_id] = key in self._ghosts
        self._ghosts.pop(key, None)

    def add(self, block_id: int) -> None:
        self._queue_of(block_id)[block_id] = None

    def hit(self, block_id: int) -> None:
        del self._queue_of(block_id)[block_id]
        self._num_uses[block_id] = min(_MOST_USES, self._num_uses[block_id] + 1)

    def renew(self, block_id: int) -> None:
        self._queue_of(block_id).move_to_end(block_id)

    def forget(self, block_id: int) -> None:
        self._queue_of(block_id).pop(block_id, None)
        self._num_uses[block_id] = self._is_long[block_id] = 0

    def evict(self) -> int:
        while self._short and (len(self._short) >= self._most_short or not self._long):
            block_id, _ = self._short.popitem(last=False)
            if not self._num_uses[block_id]:
                self._remember(block_id)
                return block_id
            self._num_uses[block_id], self._is_long[block_id] = 0, 1
            self._long[block_id] = None
        while True:
            block_id, _ = self._long.popitem(last=False)
            if not self._num_uses[block_id]:
                self._is_long[block_id] = 0
                return block_id
            self._num_uses[block_id] -= 1
            self._long[block_id] = None

    def _remember(self, block_id: int) -> None:
        self._ghosts[self._keys[block_id]] = None
        if len(self._ghosts) > self._most_ghosts:
            self._ghosts.popitem(last=False)

    def _queue_of(self, block_id: int) -> OrderedDict[int, None]:
        return self._long if self._is_long[block_id] else self._short

    def __len__(self) -> int:
        return len(self._short) + len(self._long)

    def __iter__(self) -> Iterator[int]:
        """The short queue, then the long one: which gives one up depends on their lengths."""
        yield from self._short
        yield from self._long
