"""An engine without a thread of its own: whoever waits for an output takes the next step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pagoda.engine.core import Engine
from pagoda.engine.failures import StepFailedError
from pagoda.engine.outputs import RequestOutput
from pagoda.errors import PagodaError
from pagoda.request import Request

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
        try:
            outputs: Sequence[RequestOutput] = self._engine.step()
        except StepFailedError as failed:
            for request_id, error in failed.errors.items():
                self._inboxes[request_id].append(error)
            outputs = failed.outputs
        for output in outputs:
            self._inboxes[output.request_id].append(output)
