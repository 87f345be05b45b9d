"""A prefix on its way out of one or several shelves.

    rows       | 0 1 2 3 4 5 6 7 | 8 9 10 11 |
    part       disk              | s3        |      fetched at once, each in batches
    taken       0 1 2 3  4 5 waits            8 9 wait for 6 and 7

Rows are taken in order. Where a part stops short, the load ends there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from pagoda.tiers.segment import Row
from pagoda.tiers.shelf import Payloads, Shelf
from pagoda.tiers.tier import TierFault
from pagoda.tiers.workers import Workers

BATCH_BYTES = 32 * 2**20
"""Of what a tier is asked for in one call, at most, but for a single row."""
_WAITING_BYTES = 64 * 2**20
"""Of what has come of a part and nobody has taken: with more, no further batch is asked for."""


class RowsFromShelf:
    """The rows that come from one shelf. Its batches are fetched one after the other."""

    def __init__(
        self,
        shelf: Shelf,
        workers: Workers,
        tenant: str,
        rows: Sequence[Row],
        row_bytes: int,
        tell: Callable[[], None],
    ) -> None:
        self._shelf = shelf
        self._workers = workers
        self._tenant = tenant
        self._rows = rows
        self._row_bytes = row_bytes
        self._num_asked = 0
        self._tell = tell
        self._lock = threading.Lock()
        self._arrived: deque[Payloads] = deque()
        self._is_fetching = False
        self._is_abandoned = False
        self._is_over = False
        """No more rows come."""
        self.ending: str | None = None
        """Why rows are missing; None: none are, or they are still to come."""

    def go_on(self) -> None:
        """Have the next batch fetched, unless one is, or enough has come for now."""
        with self._lock:
            waiting = len(self._arrived) * self._row_bytes
            if self._is_fetching or self._is_over or waiting > _WAITING_BYTES:
                return
            self._is_fetching = True
        if not self._workers.submit(self._fetch):
            with self._lock:
                self.ending, self._is_over = str(TierFault.ERROR), True
            self._tell()

    def take(self, most: int) -> list[Payloads]:
        """What has come, in order."""
        with self._lock:
            taken = [self._arrived.popleft() for _ in range(min(most, len(self._arrived)))]
        if taken:
            self.go_on()
        return taken

    @property
    def is_empty(self) -> bool:
        """All that will ever come has been taken."""
        with self._lock:
            return self._is_over and not self._arrived

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = self._is_over = True
            self._arrived.clear()

    def _fetch(self) -> None:
        batch = self._rows[self._num_asked :][: max(1, BATCH_BYTES // self._row_bytes)]
        ending = None
        if not self._is_abandoned:
            ending = self._shelf.load(self._tenant, batch, self._arrive)
        self._num_asked += len(batch)
        with self._lock:
            self._is_fetching = False
            self.ending = self.ending or ending
            self._is_over |= ending is not None or self._num_asked == len(self._rows)
        self._tell()
        self.go_on()

    def _arrive(self, payloads: Payloads) -> bool:
        """A row is here; False: nobody wants more."""
        with self._lock:
            if self._is_abandoned:
                return False
            self._arrived.append(payloads)
        self._tell()
        return True


class RowsFromShelves:
    """Rows that come from shelves. One thread takes them; what comes late is dropped with it."""

    def __init__(self, parts: Sequence[RowsFromShelf]) -> None:
        self._parts = deque(parts)
        self.ending: str | None = None
        """Why it stopped short, once it is done; None: it did not."""
        for part in parts:
            part.go_on()

    def take(self, most: int) -> list[Payloads]:
        """Up to `most` rows that have come since, in order: for each the payloads of its groups."""
        taken: list[Payloads] = []
        while len(taken) < most and self._parts:
            rows = self._parts[0].take(most - len(taken))
            taken += rows
            if not rows and not self._is_first_over():
                break
        return taken

    @property
    def is_done(self) -> bool:
        """Nothing more comes, and all that came was taken."""
        while self._parts and self._is_first_over():
            pass
        return not self._parts

    def abandon(self) -> None:
        """Nobody wants more of it."""
        for part in self._parts:
            part.abandon()
        self._parts.clear()

    def _is_first_over(self) -> bool:
        """The first part is done with; it is dropped, and with it all others if it fell short."""
        part = self._parts[0]
        if not part.is_empty:
            return False
        self._parts.popleft()
        if part.ending is not None:
            self.ending = part.ending
            self.abandon()
        return True
