"""An engine without a thread of its own: whoever waits for an output takes the next step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pagoda.engine.core import Engine
from pagoda.engine.outputs import RequestOutput
from pagoda.errors import PagodaError
from pagoda.request import Request

Key = TypeVar("Key", int, str)
Inbox = deque[RequestOutput | PagodaError]
"""Outputs and errors that one caller has not taken yet, of all the requests it waits for."""


class SharedSteps:
    """Steps an engine for several threads. A step is for everybody, whoever takes it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inboxes: dict[str, Inbox] = {}
        self._lock = threading.RLock()

    @contextmanager
    def running(
        self, request: Request, prompt: str | None, inbox: Inbox, *, streams: bool
    ) -> Iterator[None]:
        """Run a request while the block lasts; its outputs and its error are put into `inbox`.

        Leaving the block aborts a request that has not ended. See `Engine.add` for `prompt`,
        `streams` and what is raised.
        """
        with self._lock:
            self._inboxes[request.request_id] = inbox
        try:
            with self._lock:
                self._engine.add(request, prompt, streams=streams)
            yield
        finally:
            with self._lock:
                del self._inboxes[request.request_id]
                self._engine.abort(request.request_id)

    @contextmanager
    def between(self) -> Iterator[None]:
        """No thread takes a step while the block lasts."""
        with self._lock:
            yield

    def next(self, inbox: Inbox) -> RequestOutput:
        """The inbox's next output, taking steps until there is one. Raises an error put there."""
        while True:
            with self._lock:
                if inbox:
                    arrived = inbox.popleft()
                    break
                self._step()
        if isinstance(arrived, PagodaError):
            raise arrived
        return arrived

    def _step(self) -> None:
        """Take a step and hand out what it has brought, or what an interrupt has left over."""
        news = self._engine.news
        if not news:
            self._engine.advance()
        while news.errors:
            request_id = next(iter(news.errors))
            self._hand_over(request_id, news.errors.pop, request_id)
        while news.outputs:
            self._hand_over(news.outputs[0].request_id, news.outputs.pop, 0)

    def _hand_over(
        self, request_id: str, take: Callable[[Key], RequestOutput | PagodaError], key: Key
    ) -> None:
        """Put what `take` takes into the request's inbox, if somebody waits for it.

        The two are one call: wherever an interrupt comes, it has been told once or is still news.
        """
        inbox = self._inboxes.get(request_id, Inbox())
        inbox.extend(map(take, (key,)))
