"""A thread that steps an engine for callers in other threads.

callers' event loops          inbox            the engine's thread
   order ───────────────────> orders ────────> engine.add, engine.abort, …
                                               engine.step, step, …
   Stream <──────── Streams.deliver <────────  outputs
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from pagoda.engine.core import Engine
from pagoda.engine.failures import StepFailedError
from pagoda.engine.stats import EngineStats
from pagoda.engine.stream import Stream
from pagoda.engine.streams import Streams, call_in
from pagoda.errors import EngineError, PagodaError, ShutDownError
from pagoda.request import Request

logger = logging.getLogger("pagoda")

Order = Callable[[], None]
"""Something that the engine's thread is to do between two steps."""


class EngineThread:
    """Owns an `Engine` once it has started: nobody else may call it, but by an order.

    Between steps it takes the orders that have come. While nothing runs it does `chores`, one at a
    time, and waits for orders when none is left.
    """

    def __init__(self, engine: Engine, *, chores: Iterator[None], gives_turns: bool) -> None:
        """With `gives_turns` callers may pass on what they got before the next step begins."""
        self._engine = engine
        self._chores = chores
        self._streams = Streams(gives_turns=gives_turns)
        self._inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._is_stopping = False
        self._is_closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pagoda-engine", daemon=True)
        self.stats: EngineStats = engine.stats()
        """As of the last step."""

    # ---- in any thread -----------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Orders will be carried out."""
        return self._thread.is_alive() and not self._is_closed

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End every request that is left and wait for the thread to finish."""
        if self._thread.is_alive():
            self._inbox.put(self._note_stop)
            self.join()

    def join(self) -> None:
        """Wait for the thread to finish, which it does by itself once the device is lost."""
        self._thread.join()

    def submit(self, order: Order) -> None:
        """Have something done between two steps.

        Raises `ShutDownError` after `stop`, and `EngineError` if the thread has ended by itself.
        """
        with self._closing:
            if self._is_closed:
                raise self._closing_error()
            self._inbox.put(order)

    def ask(self, request: Request, prompt: str | None, stream: Stream, *, streams: bool) -> None:
        """Run a request, whose outputs and error go to `stream`; see `Engine.add`.

        Raises as `submit` does.
        """
        self.submit(partial(self._add, request, prompt, stream, streams))

    def abandon(self, request_id: str, stream: Stream) -> None:
        """Abort the request if it still runs: nobody waits at `stream` any more."""
        self._inbox.put(partial(self._abort, request_id, stream))

    # ---- in the engine's thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                is_idle = not self._engine.has_unfinished
                self._take_orders(wait=is_idle and not self._do_chore())
                if self._engine.has_unfinished:
                    self._step()
                else:
                    self.stats = self._engine.stats()
        except Exception:
            logger.exception("the engine's thread ends")
        finally:
            with self._closing:
                self._is_closed = True
            self._take_orders(wait=False)  # whoever came last is told as well
            self._fail_all(self._closing_error)

    def _do_chore(self) -> bool:
        """Do one chore; False if none is left."""
        return next(self._chores, "none is left") is None

    def _take_orders(self, wait: bool) -> None:
        while wait or not self._inbox.empty():
            order = self._inbox.get()
            wait = False
            try:
                order()
            except Exception:
                logger.exception("an order to the engine failed")

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except StepFailedError as failed:
            self._fail(failed.errors)
            outputs = list(failed.outputs)
            self._engine.require_device()  # without it the thread ends, and with it the server
        except Exception:
            # A bug outside the forward pass: nothing that runs can be trusted, what comes can.
            logger.exception("the engine failed between steps; its requests are ended")
            self._fail_all(partial(EngineError, "the engine failed while computing this request"))
            outputs = []
        self.stats = self._engine.stats()  # first, so that who is told of an end can see it here
        self._streams.deliver(outputs)

    def _add(self, request: Request, prompt: str | None, stream: Stream, streams: bool) -> None:
        try:
            self._engine.add(request, prompt, streams=streams)
        except PagodaError as error:
            call_in(stream.loop, partial(stream.put, error))
        except Exception:
            call_in(stream.loop, partial(stream.put, EngineError("the engine failed")))
            raise
        else:
            self._streams.open(request.request_id, stream)

    def _abort(self, request_id: str, stream: Stream) -> None:
        if self._streams.close(request_id, stream):
            self._engine.abort(request_id)

    def _fail(self, errors: Mapping[str, PagodaError]) -> None:
        """End these requests, and tell each its error."""
        self._streams.fail(errors)
        for request_id in errors:
            self._engine.abort(request_id)

    def _fail_all(self, error: Callable[[], EngineError]) -> None:
        """End all requests; each is told an error of its own."""
        self._fail({request_id: error() for request_id in self._streams.request_ids})

    def _closing_error(self) -> EngineError:
        """Why nothing is answered any more."""
        return ShutDownError() if self._is_stopping else EngineError("the engine has stopped")

    def _note_stop(self) -> None:
        self._is_stopping = True
