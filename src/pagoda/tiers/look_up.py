"""How much of a prefix lies on which shelf: asked for, and answered later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pagoda.tiers.segment import Row, Segment
from pagoda.tiers.shelf import Shelf
from pagoda.tiers.workers import Workers


class LookUp:
    """Asks shelf after shelf: leading rows of the first, then what it lacks of the next."""

    def __init__(
        self,
        shelves: Sequence[tuple[int, Shelf, Workers]],
        tenant: str,
        rows: Sequence[Row],
        row_bytes: int,
        tell: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shelves`: those to be asked, by their numbers."""
        self._shelves = list(reversed(shelves))
        self._tenant = tenant
        self._rows = rows
        self._row_bytes = row_bytes
        self._tell = tell
        self._clock = clock
        self._began = clock()
        self._is_abandoned = False
        self.segments: tuple[Segment, ...] = ()
        """What has been found so far."""
        self.is_done = False
        """Nobody is asked any more."""
        self.seconds = 0.0
        """What answering took, once it is done."""
        self._ask_next()

    def abandon(self) -> None:
        """Nobody wants to know any more."""
        self._is_abandoned = True

    def _ask_next(self) -> None:
        num_found = sum(each.num_rows for each in self.segments)
        if not self._shelves or num_found == len(self._rows) or self._is_abandoned:
            self.seconds = self._clock() - self._began
            self.is_done = True
            self._tell()
            return
        number, shelf, workers = self._shelves.pop()
        rows = self._rows[num_found:]
        if not workers.submit(lambda: self._ask(number, shelf, rows)):
            self._ask_next()

    def _ask(self, number: int, shelf: Shelf, rows: Sequence[Row]) -> None:
        num_rows = 0 if self._is_abandoned else shelf.find(self._tenant, rows)
        if num_rows:
            seconds = shelf.rates.seconds(num_rows * self._row_bytes)
            self.segments = (*self.segments, Segment(number, num_rows, seconds))
        self._ask_next()
