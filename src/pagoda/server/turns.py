"""Turns of an event loop, of which those who have much to do take one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Lets many requests do what takes long piece by piece, so that others run in between.

    One piece is done in a turn of the event loop, however many requests wait to do one. For one
    event loop.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def next(self) -> AsyncIterator[None]:
        """Wait for a turn in which no other piece is done; the block is to wait for nothing."""
        async with self._lock:
            yield
            await asyncio.sleep(0)
