"""The open streams of an engine: which caller waits for which request."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pagoda.engine.outputs import RequestOutput
from pagoda.engine.stream import Stream
from pagoda.errors import InvalidRequestError, PagodaError

logger = logging.getLogger("pagoda")

_TURN_S = 0.002
"""How long a turn of the callers lasts at most."""


class Streams:
    """Hands what the engine's thread makes to the event loops of its callers.

    One thread, the engine's, calls it, but for `tell_all`. With `gives_turns` it waits, after
    outputs, until the callers have run, or for a moment at most.
    """

    def __init__(self, *, gives_turns: bool) -> None:
        self._gives_turns = gives_turns
        self._open: dict[str, Stream] = {}

    @property
    def request_ids(self) -> list[str]:
        """Requests that somebody waits for."""
        return list(self._open)

    def open(self, request_id: str, stream: Stream) -> None:
        """What comes of the request goes to `stream` from now on.

        Raises `InvalidRequestError` if somebody waits for a request of that id already.
        """
        if request_id in self._open:
            raise InvalidRequestError("request_id", request_id, "is already in use")
        self._open[request_id] = stream

    def close(self, request_id: str, stream: Stream) -> bool:
        """Nobody waits there any more; False if `stream` was not the request's, or not open."""
        if self._open.get(request_id) is not stream:
            return False
        del self._open[request_id]
        return True

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Hand outputs over, waking each event loop once. A finished request's stream closes."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[Stream, RequestOutput]]]
        batches = defaultdict(list)
        for output in outputs:
            stream = self._open.get(output.request_id)
            if stream is not None:
                batches[stream.loop].append((stream, output))
        for loop, batch in batches.items():
            told = threading.Event()
            is_open = call_in(loop, partial(_put_all, batch, told))
            for _, output in batch:
                if output.finished:
                    del self._open[output.request_id]
            if is_open and self._gives_turns:
                told.wait(_TURN_S)

    def fail(self, errors: Mapping[str, PagodaError]) -> None:
        """Tell each of these requests' callers its error, and close their streams."""
        for request_id, error in errors.items():
            stream = self._open.get(request_id)
            if stream is not None:
                call_in(stream.loop, partial(stream.put, error))
                del self._open[request_id]

    def tell_all(self, error: PagodaError) -> None:
        """Tell every caller this error; for any thread, while the engine's own cannot."""
        for stream in tuple(self._open.values()):
            call_in(stream.loop, partial(stream.put, error))


def call_in(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> bool:
    """Run `what` in the loop's thread; False if the loop is closed and has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        if not loop.is_closed():
            raise
        logger.debug("the caller's event loop is closed")
        return False
    return True


def _put_all(batch: Iterable[tuple[Stream, RequestOutput]], told: threading.Event) -> None:
    """Wake the callers, and set `told` once they have run; not whom they wake in their turn."""
    for stream, output in batch:
        stream.put(output)
    asyncio.get_running_loop().call_soon(told.set)  # after those who have just been woken
