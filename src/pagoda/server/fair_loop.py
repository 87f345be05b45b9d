"""An event loop that does a little for many clients at a time, instead of all that it can."""

from __future__ import annotations

import asyncio
import selectors

MOST_AT_ONCE = 16
"""Sockets that are served, or connections that are taken, before streams have their turn again.

To take a connection, or a short request, costs less than a millisecond; a long part of a body is
looked at in turns (`turns.py`).
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
    """An event loop that looks after `MOST_AT_ONCE` sockets in a turn.

    A callback of another thread, such as news of the engine, runs in the next turn. With an
    ordinary loop that is when all sockets that were ready have been served.
    """

    def __init__(self) -> None:
        super().__init__(FairSelector())
