"""A thread that steps an engine for callers in other threads.

callers' event loops          inbox            the engine's thread
   order ───────────────────> orders ────────> engine.add, engine.abort, …
                                               engine.advance, advance, …
   Stream <──────── Streams.deliver <────────  engine.news
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pagoda.engine.core import Engine
from pagoda.engine.news import News
from pagoda.engine.own_process import OwnProcess
from pagoda.engine.stats import EngineStats
from pagoda.engine.stream import Stream
from pagoda.engine.streams import Streams, call_in
from pagoda.errors import EngineError, PagodaError, ShutDownError
from pagoda.request import Request

logger = logging.getLogger("pagoda")

_AWAITS_ROOM_S = 0.1
"""After so long an idle engine looks whether tiers have room again for what is to be stored."""


@dataclass(frozen=True, slots=True)
class Order:
    """Something that the engine's thread is to do between two steps."""

    do: Callable[[], None]
    refuse: Callable[[PagodaError], None]
    """Called with the error if `do` fails, in the same thread, or is not done at all; by another
    thread if `do` hangs when the engine is to end."""


class EngineThread:
    """Owns an `Engine` once it has started: nobody else may call it, but by an order.

    Between steps it takes the orders that have come. While nothing runs it does `chores`, one at a
    time, and waits for orders when none is left. What fails in an order or a step fails for those
    whom it was done for; the thread ends if its own loop fails, or the device.
    """

    def __init__(self, engine: Engine, *, chores: Iterator[None], gives_turns: bool) -> None:
        """With `gives_turns` callers may pass on what they got before the next step begins."""
        self._engine = engine
        self._chores = chores
        self._streams = Streams(gives_turns=gives_turns)
        self._inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._is_stopping = self._has_given_up = False
        self._in_hand: Order | None = None
        """What is being carried out."""
        self._is_closed = False
        self._has_failed = False
        """The last step could not be taken."""
        self._closing = threading.Lock()
        self._process = OwnProcess()
        self._thread = threading.Thread(target=self._run, name="pagoda-engine", daemon=True)
        self.stats: EngineStats = engine.stats()
        """As of the last step."""

    # ---- in any thread -----------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Orders will be carried out."""
        return self._thread.is_alive() and not self._is_closed

    def where(self) -> str:
        """The lines of code that the thread is at, the outermost first."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else "it has ended"

    def start(self) -> None:
        """Raises `EngineError` for a second time, and in a forked process."""
        self._process.require()
        if self._has_started:
            raise EngineError("the engine was started before")
        self._thread.start()

    @property
    def _has_started(self) -> bool:
        return self._thread.ident is not None

    def stop(self, timeout_s: float | None = None) -> bool:
        """End every request that is left and wait for the thread to finish, `timeout_s` at most.

        False if it has not: a step or an order hangs, and whoever waits has been told
        nevertheless. From then on it is waited for without a bound or not at all. Raises
        `EngineError` in a forked process, where there is nothing to end.
        """
        self._process.require()
        if self._has_given_up and timeout_s is not None:
            return not self._thread.is_alive()
        if self._thread.is_alive():
            self._inbox.put(Order(self._note_stop, _tell_nobody))
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._give_up()
            return False
        return True

    def join(self) -> None:
        """Wait for the thread to finish, which it does by itself once the device is lost."""
        self._thread.join()

    def _give_up(self) -> None:
        """Tell everybody what the thread cannot tell. It ends if it ever goes on."""
        self._is_stopping = self._has_given_up = True
        with self._closing:
            self._is_closed = True
        if self._in_hand is not None:
            _tell_refused(self._in_hand, ShutDownError())
        with suppress(queue.Empty):
            while True:
                _tell_refused(self._inbox.get_nowait(), ShutDownError())
        self._streams.tell_all(ShutDownError())

    def submit(self, order: Order) -> None:
        """Have something done between two steps.

        Raises `ShutDownError` after `stop`, and `EngineError` before `start`, in a forked process,
        and if the thread has ended by itself.
        """
        self._process.require()
        with self._closing:
            if self._is_closed:
                raise self._closing_error()
            if not self._has_started:
                raise EngineError("the engine was not started")
            self._inbox.put(order)

    def ask(self, request: Request, prompt: str | None, stream: Stream, *, streams: bool) -> None:
        """Run a request, whose outputs and error go to `stream`; see `Engine.add`.

        Raises as `submit` does.
        """
        add = partial(self._add, request, prompt, stream, streams)
        self.submit(Order(add, partial(self._refuse, request.request_id, stream)))

    def abandon(self, request_id: str, stream: Stream) -> None:
        """Abort the request if it still runs: nobody waits at `stream` any more."""
        self._inbox.put(Order(partial(self._abort, request_id, stream), _tell_nobody))

    # ---- in the engine's thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                is_idle = not self._engine.has_unfinished
                self._take_orders(wait=is_idle and not self._do_chore())
                if self._engine.has_unfinished:
                    self._step()
                else:
                    self._carry_out(Order(self._note_stats, _tell_nobody))
        except Exception:
            logger.exception("the engine's thread ends")
        finally:
            with self._closing:
                self._is_closed = True
            self._take_orders(wait=False)  # whoever came last is told as well
            self._fail_all()

    def _do_chore(self) -> bool:
        """Do one chore; False if none is left."""
        return self._engine.tidy() or next(self._chores, "none is left") is None

    def _take_orders(self, wait: bool) -> None:
        if wait:
            timeout_s = _AWAITS_ROOM_S if self._engine.transfers.awaits_room else None
            with suppress(queue.Empty):
                self._carry_out(self._inbox.get(timeout=timeout_s))
        while not self._inbox.empty():
            self._carry_out(self._inbox.get())

    def _carry_out(self, order: Order) -> None:
        self._in_hand = order
        try:
            order.do()
        except PagodaError as error:
            _tell_refused(order, error)
        except BaseException:  # a library's panic may be no `Exception`
            logger.exception("an order to the engine failed")
            _tell_refused(order, EngineError("the engine failed"))
        finally:
            self._in_hand = None

    def _step(self) -> None:
        """Take a step and tell what came of it. Raises if nothing can be computed any more."""
        try:
            self._engine.advance()
            self.stats = self._engine.stats()  # first, so that who is told of an end can see it
        except Exception:  # the engine is whole, and keeps its news
            if self._has_failed:
                raise
            logger.exception("the engine could not take a step; it tries once more")
            self._has_failed = True
            return
        self._has_failed = False
        self._tell(self._engine.news)

    def _tell(self, news: News) -> None:
        has_failed = bool(news.errors)
        try:
            self._streams.fail(news.errors)
            self._streams.deliver(news.outputs)
        except Exception:
            logger.exception("outputs could not be delivered; their requests are ended")
            self._fail([*news.errors, *(output.request_id for output in news.outputs)])
        news.clear()
        if has_failed:
            self._engine.require_device()  # without it the thread ends, and with it the server

    def _add(self, request: Request, prompt: str | None, stream: Stream, streams: bool) -> None:
        self._streams.open(request.request_id, stream)
        self._engine.add(request, prompt, streams=streams)

    def _refuse(self, request_id: str, stream: Stream, error: PagodaError) -> None:
        """The request could not be taken in; its caller is told first, then nothing is left."""
        call_in(stream.loop, partial(stream.put, error))
        self._abort(request_id, stream)

    def _abort(self, request_id: str, stream: Stream) -> None:
        if self._streams.close(request_id, stream):
            self._engine.abort(request_id)

    def _fail(self, request_ids: Iterable[str]) -> None:
        """End requests whose outputs may be lost; each is told an error of its own."""
        self._end_all({request_id: EngineError("the engine failed") for request_id in request_ids})

    def _fail_all(self) -> None:
        """Tell everybody who is left why nothing is answered any more."""
        self._end_all(
            {request_id: self._closing_error() for request_id in self._streams.request_ids}
        )

    def _end_all(self, errors: Mapping[str, EngineError]) -> None:
        """Tell everybody, then abort: nobody waits for an engine that cannot even do that."""
        self._streams.fail(errors)
        for request_id in errors:
            try:
                self._engine.abort(request_id)
            except Exception:
                logger.exception("a request could not be ended")

    def _closing_error(self) -> EngineError:
        """Why nothing is answered any more."""
        return ShutDownError() if self._is_stopping else EngineError("the engine has stopped")

    def _note_stop(self) -> None:
        self._is_stopping = True

    def _note_stats(self) -> None:
        self.stats = self._engine.stats()


def _tell_refused(order: Order, error: PagodaError) -> None:
    """Refuse an order. What fails in that is nobody's fault who gave another."""
    try:
        order.refuse(error)
    except Exception:
        logger.exception("an order to the engine could not be refused")


def _tell_nobody(error: PagodaError) -> None:
    """Nobody waits for the order to be carried out."""
