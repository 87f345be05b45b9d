"""Which unreferenced block is forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """An order over the unreferenced blocks that still hold something worth finding.

    Every method is O(1). A block id is held at most once.
    """

    def add(self, block_id: int) -> None:
        """The block's last reference was dropped just now."""
        ...

    def remove(self, block_id: int) -> None:
        """The block is referenced again, or its content was forgotten for another reason."""
        ...

    def evict(self) -> int:
        """Give up a block and return its id. Raises KeyError when there is none."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...


class LRU:
    """Least recently used first.

    A sequence drops its references from the last block to the first, so the tail of a prompt goes
    before the head that more prompts share.
    """

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def add(self, block_id: int) -> None:
        self._order[block_id] = None

    def remove(self, block_id: int) -> None:
        del self._order[block_id]

    def evict(self) -> int:
        return self._order.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)
