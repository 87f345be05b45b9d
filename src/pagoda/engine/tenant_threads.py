"""Threads that tenants share: whoever asks for much waits for itself, not others for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from pagoda.errors import ShutDownError

R = TypeVar("R")


class TenantThreads:
    """So many, for the calls of one event loop. Where more is asked for, each tenant in turn gets
    done what it asked for first."""

    def __init__(self, num: int, name: str, begin: Callable[[], None] | None = None) -> None:
        """`begin` is called in each thread."""
        self._threads = ThreadPoolExecutor(num, name, initializer=begin)
        self._num = self._num_free = num
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Whose turn is next comes first."""
        self._is_closed = False

    async def run(self, tenant: str, call: Callable[[], R]) -> R:
        """What the call returns. Its thread stays busy until then, also where nobody waits any
        more. Raises `ShutDownError` after `close`."""
        if self._is_closed:
            raise ShutDownError
        await self._wait(tenant)
        try:
            work = self._threads.submit(copy_context().run, call)
        except RuntimeError:  # no thread can be started
            self._pass_on()
            raise
        work.add_done_callback(partial(self._end, asyncio.get_running_loop()))
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """End the threads once they have done what waits for them already."""
        self._is_closed = True
        self._end_if_done()

    async def _wait(self, tenant: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(tenant, turn)
            else:  # it had come
                self._pass_on()
            raise

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant, deque())
        with suppress(ValueError):
            turns.remove(turn)
        if not turns:
            self._waiting.pop(tenant, None)
        self._end_if_done()

    def _end(self, loop: asyncio.AbstractEventLoop, work: Future[R]) -> None:
        """A thread is free; called there."""
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        self._num_free += 1
        while self._num_free and self._waiting:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            while turns and turns[0].done():  # cancelled just now
                turns.popleft()
            if turns:
                self._num_free -= 1
                turns.popleft().set_result(None)
            if turns:
                self._waiting[tenant] = turns
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._is_closed and not self._waiting and self._num_free == self._num:
            self._threads.shutdown(wait=False)
