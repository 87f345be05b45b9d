"""Looks at the cache for whoever watches it, and not at all while nobody does.

engine's thread   step | snapshot | step | step | …
event loop                       | what each kind of viewer is told | rest | ask again
viewers                                                            | read it, or skip it
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pagoda.engine.cache_snapshot import CacheSnapshot
from pagoda.server.admission import Admission
from pagoda.server.cache_view import CacheView, view_for
from pagoda.server.errors import ShuttingDownError
from pagoda.server.keys import Holder
from pagoda.server.shares import Shares

MOST_VIEWERS = 8
PERIOD_S = 0.25
REST = 100
"""Times as long as a look took there is none."""
_BESIDE_LOOP = 65_536
"""Blocks from which on a view is worked out beside the event loop."""
_PATIENCE_S = 1.0


@dataclass(slots=True)
class _Watched:
    """A view that somebody watches."""

    view: CacheView
    due_at: float
    """When it may be told again, by the event loop's clock."""
    num_viewers: int = 0
    number: int = 0
    """Of what was told last, from 1 on."""
    told: bytes = b""
    """JSON."""


class CacheLookout:
    """Viewers, and what they are told. For one event loop.

    All operators see the same, and so do all of a tenant: it is worked out once.
    """

    def __init__(
        self,
        take: Callable[[], Awaitable[CacheSnapshot]],
        admission: Admission,
        *,
        is_shared: bool,
    ) -> None:
        """`take` has a snapshot taken. Once `admission` is closed there is nothing to see."""
        self._take = take
        self._admission = admission
        self._places = Shares(
            MOST_VIEWERS,
            "viewers of the cache",
            is_shared=is_shared,
            num_rejected=admission.num_rejected,
        )
        self._watched: dict[str | None, _Watched] = {}
        """By tenant; an operator's by None."""
        self._looking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def is_looking(self) -> bool:
        """Somebody watches."""
        return self._looking is not None

    @contextmanager
    def place(self, holder: Holder) -> Iterator[None]:
        """Watch for as long as the block runs.

        Raises `RejectedError` where too many watch, or the server ends.
        """
        self._admission.require_open()
        with self._places.holding(holder.tenant) as holding:
            holding.take(1)
            name = None if holder.is_operator else holder.tenant
            if name not in self._watched:
                view = view_for(holder)
                self._watched[name] = _Watched(view, _next(view.period_s))
            watched = self._watched[name]
            watched.num_viewers += 1
            if self._looking is None:
                self._failure = None
                self._looking = asyncio.create_task(self._look())
            try:
                yield
            finally:
                watched.num_viewers -= 1
                if not watched.num_viewers:
                    del self._watched[name]
                if not self._watched:
                    self._looking.cancel()
                    self._looking = None

    async def news(self, holder: Holder) -> AsyncGenerator[bytes, None]:
        """What `holder`, who has a place, is told, as JSON; b"" where there is nothing new.

        Who is slow gets the newest and not what came before. Raises `RejectedError` once the server
        ends, and what the engine raises if it does.
        """
        watched = self._watched[None if holder.is_operator else holder.tenant]
        number = 0
        while True:
            news = self._news
            if self._admission.is_closed:
                raise ShuttingDownError()
            if self._failure is not None:
                raise self._failure
            if watched.number > number:
                number = watched.number
                yield watched.told
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), _PATIENCE_S)
                continue
            yield b""

    async def _look(self) -> None:
        try:
            while True:
                snapshot = await self._take()
                began = time.perf_counter()
                for watched in list(self._watched.values()):
                    await self._work_out(watched, snapshot)
                took_s = snapshot.took_s + time.perf_counter() - began
                self._tell()
                await asyncio.sleep(max(PERIOD_S, REST * took_s))
        except Exception as error:  # every viewer is told, and nobody else
            self._failure = error
            self._tell()

    async def _work_out(self, watched: _Watched, snapshot: CacheSnapshot) -> None:
        if asyncio.get_running_loop().time() < watched.due_at:
            return
        watched.due_at = _next(watched.view.period_s)

        def work_out() -> bytes:
            return watched.view.told(snapshot).model_dump_json().encode()

        if snapshot.pool.num_blocks < _BESIDE_LOOP:
            watched.told = work_out()
        else:
            watched.told = await asyncio.to_thread(work_out)
        watched.number += 1

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _next(period_s: float) -> float:
    """The next time that is a whole number of periods, so that nobody hurries it by coming anew."""
    now = asyncio.get_running_loop().time()
    return (math.floor(now / period_s) + 1) * period_s if period_s else now
