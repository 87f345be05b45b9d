"""Where one caller waits for the outputs of its request."""

from __future__ import annotations

import asyncio

from pagoda.engine.outputs import RequestOutput
from pagoda.errors import PagodaError


class Stream:
    """The outputs of one request, on their way to the caller's event loop.

    It holds one output at most: one that was not read yet goes into the next. An error ends the
    stream, after the output that was not read yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._unread: RequestOutput | None = None
        self._error: PagodaError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, arrived: RequestOutput | PagodaError) -> None:
        """Wake the caller. To be called in the loop's thread."""
        if self._error is not None:  # nothing comes after an error
            return
        if isinstance(arrived, PagodaError):
            self._error = arrived
        else:
            self._unread = arrived if self._unread is None else arrived.after(self._unread)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> RequestOutput:
        """The next output. Raises the error that came after the last one."""
        if self._unread is None and self._error is None:
            self._waiter = self.loop.create_future()
            await self._waiter
        if self._unread is None:
            assert self._error is not None, "woken for nothing"
            raise self._error
        output, self._unread = self._unread, None
        return output
