"""An event loop in a thread of its own, for libraries that know how to be cancelled.

A call waits in its own thread until its deadline, and what it waited for is then cancelled: so it
ends in time whatever the library does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from pagoda.tiers.deadline import Deadline

T = TypeVar("T")
Item = TypeVar("Item")


class EventLoop:
    """Any thread may call it, but its own."""

    def __init__(self, name: str) -> None:
        """`name`: of the thread, which is started with the first call."""
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, T], deadline: Deadline) -> T:
        """What a coroutine returns. Raises what it raises, and TierError at the deadline."""
        return _result(self._start(coroutine), deadline)

    def map(
        self,
        work: Callable[[Item], Coroutine[Any, Any, T]],
        items: Sequence[Item],
        num_at_once: int,
        deadline: Deadline,
    ) -> Generator[T]:
        """What `work` returns for each item, in their order, each as soon as it is there.

        At most `num_at_once` are worked on, and those are cancelled where one raises, at the
        deadline, and where the caller stops early.
        """
        under_way = deque[Future[T]]()
        try:
            for item in items:
                if len(under_way) == num_at_once:
                    yield _result(under_way.popleft(), deadline)
                under_way.append(self._start(work(item)))
            while under_way:
                yield _result(under_way.popleft(), deadline)
        finally:
            for future in under_way:
                future.cancel()

    def close(self) -> None:
        """End the thread and what it does. Calls that wait, or come later, raise CancelledError."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._is_closed:
                coroutine.close()
                raise CancelledError
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                args = (self._loop,)
                threading.Thread(target=_live, args=args, name=self._name, daemon=True).start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _live(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped; what is under way then is cancelled."""
    loop.run_forever()
    loop.run_until_complete(_cancel_others())
    loop.close()


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _result(future: Future[T], deadline: Deadline) -> T:
    try:
        return future.result(deadline.left_s())
    except TimeoutError:
        if future.done():
            raise  # its own, not that of waiting
        raise deadline.error() from None
    finally:
        future.cancel()
