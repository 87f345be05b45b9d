"""The engine for many callers at once: it steps in a thread of its own, callers await outputs."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pagoda.engine.core import Engine, StepFailedError
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.stats import EngineStats
from pagoda.errors import EngineError, PagodaError
from pagoda.request import Request, SamplingParams

logger = logging.getLogger("pagoda")

Order = Callable[[], None]


@dataclass(slots=True)
class _Stream:
    """Where one caller waits for its request's outputs."""

    loop: asyncio.AbstractEventLoop
    arrived: asyncio.Queue[RequestOutput | PagodaError] = field(default_factory=asyncio.Queue)


class AsyncEngine:
    """Runs an `Engine` in a thread. The event loop never waits for a step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._stats = engine.stats()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pagoda-engine", daemon=True)

    @property
    def model_name(self) -> str:
        return self.engine.model_name

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    async def shutdown(self) -> None:
        """End every request that is left and wait for the thread to finish."""
        if self._thread.is_alive():
            self._inbox.put(self._stop)
            await asyncio.to_thread(self._thread.join)

    def stats(self) -> EngineStats:
        """As of the last step."""
        return self._stats

    def chat_prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the model is to answer."""
        return self.engine.tokenizer.chat(list(messages))

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they grow, the last one `finished`. Closing the iterator aborts the request.

        Raises `InvalidRequestError` before the first output, `EngineError` if the engine fails.
        """
        request = self.engine.intake.request(
            request_id, prompt, sampling, priority=priority, tenant=tenant, cache_salt=cache_salt
        )
        stream = _Stream(asyncio.get_running_loop())
        text = prompt if isinstance(prompt, str) else None
        self._inbox.put(lambda: self._add(request, text, stream))
        finished = False
        try:
            while not finished:
                arrived = await stream.arrived.get()
                if isinstance(arrived, PagodaError):
                    finished = True
                    raise arrived
                finished = arrived.finished
                yield arrived
        finally:
            if not finished:
                self._inbox.put(lambda: self._abort(request_id, stream))

    # ---- in the engine's thread --------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._take_orders(wait=not self.engine.has_unfinished)
            if self.engine.has_unfinished:
                self._step()
            else:
                self._stats = self.engine.stats()

    def _take_orders(self, wait: bool) -> None:
        try:
            while True:
                self._inbox.get(block=wait)()
                wait = False
        except queue.Empty:
            return

    def _step(self) -> None:
        try:
            outputs: Sequence[RequestOutput] = self.engine.step()
        except StepFailedError as error:
            self._fail(error.request_ids)
            return
        except Exception:
            # A bug outside the forward pass: nothing that runs can be trusted, what comes can.
            logger.exception("the engine failed between steps; its requests are ended")
            self._fail(tuple(self._streams))
            return
        self._stats = self.engine.stats()  # first, so that who is told of an end can see it here
        deliveries: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, RequestOutput]]]
        deliveries = defaultdict(list)
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                deliveries[stream.loop].append((stream, output))
                if output.finished:
                    del self._streams[output.request_id]
        for loop, batch in deliveries.items():
            _call(loop, partial(_deliver, batch))

    def _add(self, request: Request, prompt: str | None, stream: _Stream) -> None:
        try:
            self.engine.add(request, prompt)
        except PagodaError as error:
            self._send(stream, error)
        else:
            self._streams[request.request_id] = stream

    def _abort(self, request_id: str, stream: _Stream) -> None:
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self.engine.abort(request_id)

    def _fail(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            stream = self._streams.pop(request_id, None)
            self.engine.abort(request_id)
            if stream is not None:
                self._send(stream, EngineError("the engine failed while computing this request"))

    def _stop(self) -> None:
        self._fail(tuple(self._streams))
        self._stopping = True

    def _send(self, stream: _Stream, what: RequestOutput | PagodaError) -> None:
        _call(stream.loop, lambda: stream.arrived.put_nowait(what))


def _deliver(batch: list[tuple[_Stream, RequestOutput]]) -> None:
    for stream, output in batch:
        stream.arrived.put_nowait(output)


def _call(loop: asyncio.AbstractEventLoop, what: Order) -> None:
    """Run `what` in the loop's thread; a loop that is closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        logger.debug("the caller's event loop is closed")
