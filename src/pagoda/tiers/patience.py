"""Calls that may hang, made by threads that can be given up on.

A read from a disk that does not answer cannot be broken off. So a thread of its own makes it, and
whoever asked waits for as long as he has time; the thread ends once the disk answers, or never.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from pagoda.tiers.deadline import Deadline
from pagoda.tiers.tier import TierError, TierFault

_MOST_THREADS = 32
"""At once, those that hang among them."""
_READ_AHEAD = 4
T = TypeVar("T")


class _Ended:
    """How a piece of work ended: what it raised, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Patience:
    """Of one tier, for all of its calls."""

    def __init__(self, what: str) -> None:
        """what: the tier, as errors name it."""
        self._what = what
        self._free = threading.Semaphore(_MOST_THREADS)

    def call(self, work: Callable[[], T], timeout_s: float) -> T:
        """What `work` gives, or raises. Raises `TierError` once it has taken so long."""
        (result,) = self.stream(lambda: iter((work(),)), timeout_s)
        return result

    def stream(self, work: Callable[[], Iterator[T]], timeout_s: float) -> Iterator[T]:
        """What `work` yields, some pieces ahead; it is not gone on with once this is closed."""
        if not self._free.acquire(blocking=False):
            raise TierError(TierFault.TIMEOUT, f"{self._what}: earlier calls hang")
        pieces: queue.SimpleQueue[tuple[T] | _Ended] = queue.SimpleQueue()
        places = threading.Semaphore(_READ_AHEAD)
        given_up = threading.Event()

        def run() -> None:
            error: BaseException | None = None
            try:
                for piece in work():
                    pieces.put((piece,))
                    places.acquire()
                    if given_up.is_set():
                        break
            except BaseException as caught:
                error = caught
            finally:
                self._free.release()
                pieces.put(_Ended(error))

        self._start(run)
        deadline = Deadline(timeout_s, self._what)
        try:
            while True:
                piece = self._next(pieces, deadline)
                if isinstance(piece, _Ended):
                    if piece.error is not None:
                        raise piece.error
                    return
                places.release()
                yield piece[0]
        finally:
            given_up.set()
            places.release()

    def _start(self, run: Callable[[], None]) -> None:
        try:
            threading.Thread(target=run, name=f"pagoda {self._what}", daemon=True).start()
        except RuntimeError as error:
            self._free.release()
            raise TierError(TierFault.ERROR, f"{self._what}: {error}") from None

    @staticmethod
    def _next(
        pieces: queue.SimpleQueue[tuple[T] | _Ended], deadline: Deadline
    ) -> tuple[T] | _Ended:
        try:
            return pieces.get(timeout=deadline.left_s())
        except queue.Empty:
            raise deadline.error() from None
