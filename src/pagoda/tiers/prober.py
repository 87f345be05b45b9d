"""Tries a shelf that nobody loads from: how quick it is, and whether it is well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pagoda.tiers.breaker import NUM_FAILURES
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
        self._clock = clock
        self._is_closed = threading.Event()

    def start(self) -> None:
        """Begin, with a first probe at once."""
        name = f"pagoda-{self._shelf.name}-probe"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """End, after a probe that is under way."""
        self._is_closed.set()

    def _run(self) -> None:
        for _ in range(NUM_FAILURES):  # one that is down is known to be before anybody asks it
            if self._shelf.probe() or self._is_closed.is_set():
                break
        while not self._is_closed.wait(_TICK_S):
            if self._is_due():
                self._shelf.probe()
            else:
                self._shelf.look()

    def _is_due(self) -> bool:
        for breaker in (self._shelf.reading, self._shelf.writing):
            if not breaker.is_closed and breaker.allows():
                return True
        return self._clock() - self._shelf.used_at > _UNUSED_S
