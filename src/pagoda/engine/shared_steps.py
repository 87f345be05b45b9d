"""An engine without a thread of its own: whoever waits for an output takes the next step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from pagoda.engine.core import Engine
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.own_process import OwnProcess
from pagoda.errors import PagodaError
from pagoda.request import Request

Inbox = deque[RequestOutput | PagodaError]
"""Outputs and errors that one caller has not taken yet, of all the requests it waits for."""


class SharedSteps:
    """Steps an engine for several threads. A step is for everybody, whoever takes it.

    A caller may leave anywhere: by an interrupt while another thread takes a step, or because the
    garbage collector closes its stream, which happens in the middle of the step that this very
    thread takes. So leaving waits for nothing and changes nothing: the request is noted as
    abandoned, and aborted by whoever has the lock next, or has it now and is about to let it go.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inboxes: dict[str, Inbox] = {}
        self._abandoned: deque[str] = deque()
        """Ids of requests that nobody waits for any more; appended to without the lock."""
        self._lock = threading.Lock()
        self._process = OwnProcess()

    @contextmanager
    def running(
        self, request: Request, prompt: str | None, inbox: Inbox, *, streams: bool
    ) -> Iterator[None]:
        """Run a request while the block lasts; its outputs and its error are put into `inbox`.

        Leaving the block aborts a request that has not ended. See `Engine.add` for `prompt`,
        `streams` and what is raised.
        """
        try:
            self.between(partial(self._add, request, prompt, inbox, streams))
            yield
        finally:
            self._abandoned.append(request.request_id)
            self._end_abandoned()

    def between(self, do: Callable[[], None]) -> None:
        """Do something while no thread takes a step. Raises `EngineError` in a forked process."""
        self._process.require()
        try:
            with self._lock:
                self._abort_abandoned()
                do()
        finally:
            self._end_abandoned()

    def next(self, inbox: Inbox) -> RequestOutput:
        """The inbox's next output, taking steps until there is one. Raises an error put there."""
        while not inbox:
            self.between(partial(self._step_for, inbox))
        arrived = inbox.popleft()
        if isinstance(arrived, PagodaError):
            raise arrived
        return arrived

    # ---- with the lock -----------------------------------------------------------------------

    def _add(self, request: Request, prompt: str | None, inbox: Inbox, streams: bool) -> None:
        self._inboxes[request.request_id] = inbox
        self._engine.add(request, prompt, streams=streams)

    def _step_for(self, inbox: Inbox) -> None:
        """Take a step, unless one of another thread has just filled the inbox."""
        if not inbox:
            self._step()

    def _step(self) -> None:
        """Take a step and hand out what it has brought, or what an interrupt has left over.

        Wherever an interrupt comes, each has been told once or is still news.
        """
        news = self._engine.news
        self._engine.finish_recovery()
        if not news:
            self._engine.advance()
        while news.errors:
            request_id = next(iter(news.errors))
            self._inbox_of(request_id).extend(news.take_error(request_id))
        while news.outputs:
            self._inbox_of(news.outputs[0].request_id).extend(news.take_output())

    def _inbox_of(self, request_id: str) -> Inbox:
        """A new one, which is read by nobody, if nobody waits for the request."""
        return self._inboxes.get(request_id, Inbox())

    def _abort_abandoned(self) -> None:
        while self._abandoned:
            request_id = self._abandoned[0]
            self._engine.abort(request_id)
            self._inboxes.pop(request_id, None)
            self._abandoned.popleft()  # last: an interrupt before it leaves the request to be ended

    # ---- without the lock --------------------------------------------------------------------

    def _end_abandoned(self) -> None:
        """Abort what is abandoned, unless the lock is held: who holds it comes here afterwards.

        Looks before it locks, since an interrupt between a successful `acquire(blocking=False)` and
        its `try` would hold the lock for ever; `with` leaves no such gap.
        """
        while self._abandoned and not self._lock.locked():
            with self._lock:
                self._abort_abandoned()
