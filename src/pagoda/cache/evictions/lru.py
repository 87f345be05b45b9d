"""Least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.record import BlockRecord


class LRU:
    """Least recently used first.

    A sequence drops its references from the last block to the first, so the tail of a prompt goes
    before the head that more prompts share.
    """

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """What a block holds does not matter here."""

    def add(self, block_id: int) -> None:
        self._order[block_id] = None

    def hit(self, block_id: int) -> None:
        del self._order[block_id]

    def renew(self, block_id: int) -> None:
        self._order.move_to_end(block_id)

    def forget(self, block_id: int) -> None:
        self._order.pop(block_id, None)

    def evict(self) -> int:
        return self._order.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._order

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)
