"""What takes long for a session: who may ask for it, and the threads that do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from pagoda.engine.sessions.errors import SessionFailedError
from pagoda.engine.streams import call_in
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
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def settle(tell: Callable[[], None]) -> None:
            call_in(done.get_loop(), lambda: None if done.done() else tell())

        def carry_out() -> None:
            try:
                result = do()
            except BaseException as error:  # a library's panic may be no `Exception`
                settle(partial(done.set_exception, error))
            else:
                settle(partial(done.set_result, result))

        if not self._workers.submit(carry_out):
            raise SessionFailedError("no thread can be started for it")
        return await done
