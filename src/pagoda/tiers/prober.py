"""Tries a shelf that nobody loads from: how quick it is, and whether it is well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pagoda.tiers.breaker import NUM_FAILURES
from pagoda.tiers.probe import Probe
from pagoda.tiers.shelf import Shelf

_TICK_S = 0.25
_UNUSED_S = 60.0
"""A shelf that nothing was loaded from for so long is tried: one whose rates are too bad to load
anything is asked where blocks are on and on, and nothing else tells that it is quick again."""


class Prober:
    """A thread of its own for each shelf, which may hang in its tier.

    A shelf that is left alone because it failed is tried as its breakers say, by this alone: no
    request has to.
    """

    def __init__(self, shelf: Shelf, clock: Callable[[], float] = time.monotonic) -> None:
        self._shelf = shelf
        self._probe = Probe(shelf)
        self._clock = clock
        self._is_closed = threading.Event()
        self._probed_at = -float("inf")

    def start(self) -> None:
        """Begin, with a first probe at once."""
        name = f"pagoda-{self._shelf.name}-probe"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """End, after a probe that is under way."""
        self._is_closed.set()

    def _run(self) -> None:
        for _ in range(NUM_FAILURES):  # one that is down is known to be before anybody asks it
            if self._try() or self._is_closed.is_set():
                break
        while not self._is_closed.wait(_TICK_S):
            if self._is_due():
                self._try()
            else:
                self._shelf.look()

    def _try(self) -> bool:
        self._probed_at = self._clock()
        return self._probe.run()

    def _is_due(self) -> bool:
        """Of a shelf that failed, when its breakers say so, however long ago it was used."""
        opened = [each for each in (self._shelf.reading, self._shelf.writing) if not each.is_closed]
        if opened:
            return any(each.allows() for each in opened)
        last = max(self._shelf.used_at, self._probed_at)
        return self._clock() - last > _UNUSED_S
