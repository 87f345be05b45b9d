"""What moves blocks between an engine and its tiers, while the engine goes on.

    the engine's thread                      threads of each shelf
    look_up, load, store           ────────> readers: find, load       writer: store       prober
    LookUp, RowsFromShelves: take  <────────

Every call returns at once but `wait`, which is for an engine that has nothing to compute, and
`close`. A tier that hangs holds up its own threads, and nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pagoda.tiers.gate import longest_answer_s, may_pay
from pagoda.tiers.look_up import LookUp
from pagoda.tiers.names import BlockName
from pagoda.tiers.prober import Prober
from pagoda.tiers.rows_from_shelves import RowsFromShelf, RowsFromShelves
from pagoda.tiers.segment import Row, Segment
from pagoda.tiers.shelf import Shelf
from pagoda.tiers.shelf_stats import ShelfStats
from pagoda.tiers.store_queue import Room, StoreQueue
from pagoda.tiers.tier import FrameBytes
from pagoda.tiers.workers import Workers, WorkerThreads

_NUM_READERS = 4
_WAITING_BYTES = 256 * 2**20
"""Of blocks that wait to be stored, on each shelf."""

NewWorkers = Callable[[str, int], Workers]


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked for a prefix."""

    shelves: tuple[int, ...]
    """By their numbers."""
    round_trip_s: float | None
    """What the answers of all take, one after the other; None: nobody knows of some."""
    may_pay: bool
    """Loading all from one of them would be quicker than computing, as far as is known."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A shelf, and who works for it."""

    shelf: Shelf
    readers: Workers
    writer: Workers
    stores: StoreQueue
    prober: Prober


class TierMover:
    """Several shelves, the nearest first. One thread, the engine's, calls it."""

    def __init__(
        self,
        shelves: Sequence[Shelf],
        row_bytes: int,
        *,
        waiting_bytes: int = _WAITING_BYTES,
        new_workers: NewWorkers = WorkerThreads,
        probes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`row_bytes`: of a block of all groups. `waiting_bytes`: of blocks that may wait to be
        stored on each shelf. `new_workers`: makes those that do what takes long, by their name and
        number. `probes`: shelves are tried at once, and now and then. `clock`: seconds that
        answers are timed by."""
        self.row_bytes = row_bytes
        self._clock = clock
        self._arrived = threading.Event()
        self._places = [
            _place(shelf, new_workers, Room(waiting_bytes), probes) for shelf in shelves
        ]
        self._is_closed = False
        self._num_hung = [0] * len(shelves)
        self.stores_all = any(shelf.stores_all for shelf in shelves)
        """Some shelf takes blocks that nobody has found yet."""
        self.timeout_s = max((shelf.timeout_s for shelf in shelves), default=0.0)
        """What a single call of any tier may take."""

    def name_of(self, number: int) -> str:
        """What metrics call a shelf."""
        return self._places[number].shelf.name

    def whom_to_ask(self, num_rows: int, compute_s: float | None) -> Asked:
        """The shelves that are up and whose answer is worth waiting for, of a prefix of so many
        rows that takes so long to compute; None: nobody knows, and all are asked."""
        asked, hopeful, round_trips = list[int](), False, list[float | None]()
        for number, place in enumerate(self._places):
            round_trip_s = place.shelf.rates.round_trip_s
            pays, longest_s = True, self.timeout_s
            if compute_s is not None:
                load_s = place.shelf.rates.seconds(num_rows * self.row_bytes)
                pays = may_pay(load_s, round_trip_s, compute_s)
                longest_s = longest_answer_s(compute_s, pays=pays)
            if (round_trip_s or 0.0) <= longest_s and self._is_open(number):
                asked.append(number)
                round_trips.append(round_trip_s)
                hopeful |= pays
        known = [seconds for seconds in round_trips if seconds is not None]
        total_s = sum(known) if len(known) == len(asked) else None
        return Asked(tuple(asked), total_s, hopeful)

    def look_up(self, tenant: str, rows: Sequence[Row], asked: Asked) -> LookUp:
        """Where leading rows of a prefix are."""
        places = [(number, self._places[number]) for number in asked.shelves]
        shelves = [(number, place.shelf, place.readers) for number, place in places]
        return LookUp(shelves, tenant, rows, self.row_bytes, self._arrived.set, self._clock)

    def load(
        self, tenant: str, rows: Sequence[Row], segments: Sequence[Segment]
    ) -> RowsFromShelves:
        """Fetch the rows that `segments` stand for, which are the first of `rows`."""
        parts, start = list[RowsFromShelf](), 0
        for each in segments:
            place, stop = self._places[each.shelf], start + each.num_rows
            args = (place.shelf, place.readers, tenant, rows[start:stop], self.row_bytes)
            parts.append(RowsFromShelf(*args, self._arrived.set))
            start = stop
        return RowsFromShelves(parts)

    def wants(self, name: BlockName, *, reused: bool) -> bool:
        """Some shelf would store this block, has it not, as far as is known, and is not being given
        it. `reused`: it was found a second time."""
        return any(place.stores.wants(name, reused=reused) for place in self._places)

    def has(self, name: BlockName) -> bool:
        """Every shelf is known to have this block."""
        return all(name in place.shelf.known for place in self._places)

    def store(self, tenant: str, name: BlockName, payload: FrameBytes, *, reused: bool) -> bool:
        """Give a block to all shelves that want it; `payload` is read later. False: some shelf
        does not get it, because too much is waiting."""
        wanting = [each.stores for each in self._places if each.stores.wants(name, reused=reused)]
        taken = [stores.put(tenant, name, payload) for stores in wanting]
        return all(taken)

    @property
    def shelves(self) -> tuple[Shelf, ...]:
        """The nearest first, for whoever may wait for them in a thread of its own."""
        return tuple(place.shelf for place in self._places)

    @property
    def num_free_bytes(self) -> int:
        """Of blocks, as many may still be given to it: what is free for the shelf that has most, of
        those that can be given any. Where none can, blocks are not wanted either."""
        taking = [place.stores for place in self._places if place.stores.takes]
        every = [place.stores for place in self._places]
        return max((stores.room.num_free for stores in taking or every), default=0)

    def wait(self, timeout_s: float) -> None:
        """Until something has come since this was called last."""
        self._arrived.wait(timeout_s)
        self._arrived.clear()

    def stats(self) -> tuple[ShelfStats, ...]:
        """Of each shelf, as of now. Any thread may ask."""
        return tuple(
            replace(place.shelf.stats(), takes_stores=place.stores.takes) for place in self._places
        )

    def wait_until_stored(self, timeout_s: float) -> bool:
        """Nothing waits to be stored any more; False: after `timeout_s` something still does."""
        until = time.monotonic() + timeout_s
        waited = [
            place.stores.room.wait_until_empty(max(0.0, until - time.monotonic()))
            for place in self._places
        ]
        return all(waited)

    def close(self, timeout_s: float) -> None:
        """Store what waits to be, for so many seconds at most, and give all tiers up; no effect
        when closed already."""
        if self._is_closed:
            return
        self._is_closed = True
        self.wait_until_stored(timeout_s)
        for place in self._places:
            place.prober.close()
            place.readers.close()
            place.writer.close()
            place.shelf.close()

    def _is_open(self, number: int) -> bool:
        """A shelf is asked: its breaker is closed, and not all of its threads hang."""
        place = self._places[number]
        num_hung = place.readers.num_overdue(place.shelf.hangs_after_s)
        for _ in range(num_hung - self._num_hung[number]):
            place.shelf.hang(place.shelf.reading)
        self._num_hung[number] = num_hung
        return place.shelf.reading.is_closed and num_hung < place.readers.num_threads


def _place(shelf: Shelf, new_workers: NewWorkers, room: Room, probes: bool) -> _Place:
    name = f"pagoda-{shelf.name}"
    readers, writer = new_workers(f"{name}-read", _NUM_READERS), new_workers(f"{name}-store", 1)
    prober = Prober(shelf)
    if probes:
        prober.start()
    return _Place(shelf, readers, writer, StoreQueue(shelf, writer, room), prober)
