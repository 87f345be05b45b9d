"""An event loop that does a little for many clients at a time, instead of all that it can."""

from __future__ import annotations

import asyncio
import selectors

MOST_AT_ONCE = 16
"""Sockets that are served, or connections that are taken, before streams have their turn again.

Each costs a millisecond or less.
"""


class FairSelector(selectors.DefaultSelector):
    """Tells of a few sockets that are ready at a time; of others it tells the next times."""

    _turn = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        if len(ready) <= MOST_AT_ONCE:
            return ready
        self._turn = (self._turn + MOST_AT_ONCE) % len(ready)
        return [*ready[self._turn :], *ready[: self._turn]][:MOST_AT_ONCE]


class FairLoop(asyncio.SelectorEventLoop):
    """What other threads have to tell never waits for a crowd of sockets."""

    def __init__(self) -> None:
        super().__init__(FairSelector())
