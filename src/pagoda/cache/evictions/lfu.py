"""Least frequently used first, counts growing old."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.evictions.content_key import content_key
from pagoda.cache.evictions.rank_queue import RankQueue
from pagoda.cache.record import BlockRecord


class LFU:
    """Least frequently used first, with dynamic ageing: of equals the least recently used.

        rank = uses + age        age: the rank of the block that was given up last

    So what was used often long ago is caught up with. Uses of as many contents as blocks are
    remembered after these were given up. Operations take a time that grows with the logarithm of
    the blocks held. Arlitt, Cherkasova, Dilley, Friedrich, Jin: Evaluating content management
    techniques for Web proxy caches, WISP 1999 (LFU-DA).
    """

    def __init__(self, num_blocks: int) -> None:
        self._queue = RankQueue(num_blocks)
        self._age = 0.0
        self._keys = array("Q", bytes(8 * num_blocks))
        self._num_uses = array("q", bytes(8 * num_blocks))
        self._ghosts: OrderedDict[int, int] = OrderedDict()
        """Uses of what was given up."""
        self._most_ghosts = num_blocks

    def publish(self, block_id: int, record: BlockRecord) -> None:
        self._keys[block_id] = content_key(record)
        self._num_uses[block_id] = 1 + self._ghosts.pop(self._keys[block_id], 0)

    def add(self, block_id: int) -> None:
        self._queue.put(block_id, self._worth(block_id) + self._age)

    def hit(self, block_id: int) -> None:
        self._queue.remove(block_id)
        self._num_uses[block_id] += 1

    def renew(self, block_id: int) -> None:
        self._queue.remove(block_id)
        self.add(block_id)

    def forget(self, block_id: int) -> None:
        if block_id in self._queue:
            self._queue.remove(block_id)
        self._num_uses[block_id] = 0

    def evict(self) -> int:
        block_id, self._age = self._queue.pop()
        self._ghosts[self._keys[block_id]] = self._num_uses[block_id]
        if len(self._ghosts) > self._most_ghosts:
            self._ghosts.popitem(last=False)
        self._num_uses[block_id] = 0
        return block_id

    def _worth(self, block_id: int) -> float:
        return float(self._num_uses[block_id])

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[int]:
        """In the order of eviction."""
        return iter(self._queue)
