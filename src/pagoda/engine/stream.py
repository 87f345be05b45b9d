"""Where one caller waits for the outputs of its request."""

from __future__ import annotations

import asyncio

from pagoda.engine.outputs import RequestOutput
from pagoda.errors import PagodaError


class Stream:
    """The outputs of one request, on their way to the caller's event loop.

    It holds one output at most: one that was not read yet goes into the next.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: RequestOutput | PagodaError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, arrived: RequestOutput | PagodaError) -> None:
        """Wake the caller. To be called in the loop's thread."""
        unseen = self._arrived
        if isinstance(unseen, PagodaError):  # nothing comes after an error
            return
        if isinstance(unseen, RequestOutput) and isinstance(arrived, RequestOutput):
            arrived = arrived.after(unseen)
        self._arrived = arrived
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> RequestOutput:
        """The next output. Raises the error that came in its place."""
        if self._arrived is None:
            self._waiter = self.loop.create_future()
            await self._waiter
        arrived, self._arrived = self._arrived, None
        assert arrived is not None
        if isinstance(arrived, PagodaError):
            raise arrived
        return arrived
