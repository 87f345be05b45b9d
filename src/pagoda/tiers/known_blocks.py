"""Blocks that a tier is known to have: so that it need not be asked, nor given them again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from pagoda.tiers.names import BlockName

_MOST = 2**17


class KnownBlocks:
    """Bounded: what was learned longest ago is forgotten first. Any thread may call it."""

    def __init__(self) -> None:
        self._most = _MOST
        self._names: OrderedDict[BlockName, None] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, name: BlockName) -> bool:
        return name in self._names

    def bound(self, num_blocks: int) -> None:
        """Remember so many at most: those that a cache can have at a time, since no others are
        given to a tier."""
        self._most = min(num_blocks, _MOST)

    def add(self, names: Iterable[BlockName]) -> None:
        """They are there."""
        with self._lock:
            for name in names:
                self._names[name] = None
                self._names.move_to_end(name)
            for _ in range(len(self._names) - self._most):
                self._names.popitem(last=False)

    def drop(self, names: Iterable[BlockName]) -> None:
        """They are not, or nobody knows."""
        with self._lock:
            for name in names:
                self._names.pop(name, None)

    def clear(self) -> None:
        """Nothing is known."""
        with self._lock:
            self._names.clear()
