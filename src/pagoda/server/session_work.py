"""What takes long for a session: who may ask for it, and the threads that do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from pagoda.engine.sessions.errors import SessionFailedError
from pagoda.server.admission import Admission
from pagoda.server.shares import Shares
from pagoda.tiers.workers import WorkerThreads

_MOST = 4
"""Sessions that are saved, restored, exported or imported at a time."""

Result = TypeVar("Result")


class SessionWork:
    """For one event loop. A tenant has a share of what may be done at a time."""

    def __init__(self, admission: Admission, *, is_shared: bool) -> None:
        self._admission = admission
        self._shares = Shares(
            _MOST,
            "sessions on their way",
            is_shared=is_shared,
            num_rejected=admission.num_rejected,
        )
        # Daemons, unlike those of a pool: a tier that hangs keeps no process from its end.
        self._workers = WorkerThreads("pagoda-sessions", _MOST)

    @contextmanager
    def entered(self, tenant: str) -> Iterator[None]:
        """Be one of them while the block runs. Raises `RejectedError` where there are enough."""
        with self._admission.entered(tenant), self._shares.holding(tenant) as holding:
            holding.take(1)
            yield

    async def do(self, do: Callable[[], Result]) -> Result:
        """What `do` returns, or raises, in a thread. It ends there even if nobody waits for it.

        Raises `SessionFailedError` where there is no thread.
        """
        done: Future[Result] = Future()
        done.set_running_or_notify_cancel()

        def carry_out() -> None:
            try:
                done.set_result(do())
            except BaseException as error:  # a library's panic may be no `Exception`
                done.set_exception(error)

        if not self._workers.submit(carry_out):
            raise SessionFailedError("no thread can be started for it")
        return await asyncio.wrap_future(done)
