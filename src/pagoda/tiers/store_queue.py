"""Blocks that wait to be stored on one shelf."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from pagoda.tiers.names import BlockName
from pagoda.tiers.shelf import Shelf
from pagoda.tiers.tier import FrameBytes
from pagoda.tiers.workers import Workers

logger = logging.getLogger("pagoda")

_BATCH_BYTES = 16 * 2**20
"""Given to a tier in one call, at most, but for a single block."""


class Room:
    """How many bytes may wait in a queue. For several threads."""

    def __init__(self, num_bytes: int) -> None:
        self.num_free = self.num_bytes = num_bytes
        self._changed = threading.Condition()

    def take(self, num_bytes: int) -> bool:
        """False: there is not so much left."""
        with self._changed:
            if num_bytes > self.num_free:
                return False
            self.num_free -= num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        with self._changed:
            self.num_free += num_bytes
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Nothing waits any more; False: some still does."""
        with self._changed:
            return self._changed.wait_for(lambda: self.num_free == self.num_bytes, timeout_s)


@dataclass(frozen=True, slots=True)
class _Waiting:
    tenant: str
    name: BlockName
    payload: FrameBytes


class StoreQueue:
    """Hands blocks to a shelf, many at once, in the order in which they came."""

    def __init__(self, shelf: Shelf, workers: Workers, room: Room) -> None:
        """`room`: of this queue alone, so that a shelf which hangs takes none of another's."""
        self.room = room
        self._shelf = shelf
        self._workers = workers
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._given: set[BlockName] = set()
        """Waiting, or on their way."""
        self._is_storing = False
        self._was_stuck = False

    @property
    def takes(self) -> bool:
        """The shelf can be given blocks: it is well, and its threads come back."""
        return self._shelf.takes_stores and not self._is_stuck()

    def wants(self, name: BlockName, *, reused: bool) -> bool:
        """The shelf would store this block, and is not being given it."""
        if name in self._given or not self._shelf.wants(name, reused=reused):
            return False
        is_stuck = self._is_stuck()
        if is_stuck and not self._was_stuck:
            self._shelf.hang(self._shelf.writing)
            told = self._shelf.told
            logger.warning("the tier %s is not given blocks: one that it was given hangs", told)
        self._was_stuck = is_stuck
        return not is_stuck

    def put(self, tenant: str, name: BlockName, payload: FrameBytes) -> bool:
        """False: dropped, there is no room."""
        if not self.room.take(len(payload)):
            self._shelf.drop()
            return False
        with self._lock:
            self._given.add(name)
            self._waiting.append(_Waiting(tenant, name, payload))
            if self._is_storing:
                return True
            self._is_storing = self._workers.submit(self._store)  # if not, the next one tries again
        return True

    def _is_stuck(self) -> bool:
        """All threads hang in the tier: whatever were put here would wait behind them."""
        num_overdue = self._workers.num_overdue(self._shelf.hangs_after_s)
        return num_overdue >= self._workers.num_threads

    def _store(self) -> None:
        batch = self._next_batch()
        try:
            self._shelf.store(batch[0].tenant, [(each.name, each.payload) for each in batch])
        finally:
            self._end(batch)

    def _next_batch(self) -> list[_Waiting]:
        """The first that wait, all of one tenant."""
        with self._lock:
            batch = [self._waiting.popleft()]
            size = len(batch[0].payload)
            while self._waiting and self._waiting[0].tenant == batch[0].tenant:
                size += len(self._waiting[0].payload)
                if size > _BATCH_BYTES:
                    break
                batch.append(self._waiting.popleft())
            return batch

    def _end(self, batch: list[_Waiting]) -> None:
        with self._lock:
            self._given.difference_update(each.name for each in batch)
            self._is_storing = bool(self._waiting) and self._workers.submit(self._store)
        self.room.give_back(sum(len(each.payload) for each in batch))
