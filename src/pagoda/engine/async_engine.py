"""The engine for many callers at once: it steps in a thread of its own, callers await outputs.

callers' event loops          inbox            the engine's thread
generate ──── add ─────────> orders ─────────> engine.add, step, step, …
   <───────── _Stream <──────────────────────  outputs
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from pagoda.engine.core import Engine, StepFailedError
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.stats import EngineStats
from pagoda.engine.timeline import Timeline
from pagoda.errors import EngineError, PagodaError, RequestTimeoutError, ShutDownError
from pagoda.models.tool_prompt import ToolFormat
from pagoda.request import Request, SamplingParams

logger = logging.getLogger("pagoda")

Order = Callable[[], None]
"""Something the engine's thread is to do between steps."""

_TURN_S = 0.002
"""How long callers' turn lasts at most."""


class AsyncEngine:
    """Runs an `Engine` in a thread. The event loop never waits for a step.

    Where the engine takes all the cores there are, it takes turns with its callers: before the next
    step they have a moment to pass on what they got. A thread that has to share its core in the
    middle of a step holds up all others, which takes longer than the moment.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._stats = engine.stats()
        self._stopping = False
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pagoda-engine", daemon=True)

    @property
    def model_name(self) -> str:
        return self.engine.model_name

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at once."""
        return self.engine.scheduler.max_num_seqs

    @property
    def timeline(self) -> Timeline:
        """What requests have taken; to be read alone."""
        return self.engine.timeline

    @property
    def has_chat_template(self) -> bool:
        """Chats can be answered. Asking for it prepares the first of them."""
        return self.engine.tokenizer.has_chat_template

    @property
    def is_alive(self) -> bool:
        """The engine's thread runs: requests will be answered."""
        return self._thread.is_alive() and not self._closed

    def warm_up_draws(self) -> None:
        """Prepare what the first token that is drawn would wait for. Before `start`."""
        self.engine.warm_up_draws()

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

    @property
    def tool_format(self) -> ToolFormat:
        """The form in which the model calls tools that it was told of."""
        return self.engine.tokenizer.tool_format

    async def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Token ids of a conversation, up to where the model is to answer, perhaps by a tool.

        Raises `InvalidRequestError` naming `messages`.
        """
        return await asyncio.to_thread(self.engine.intake.chat, messages, tools)

    async def tokenize(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises `InvalidRequestError` naming `prompt`."""
        return await asyncio.to_thread(self.engine.intake.encode, text, add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int], field: str = "tokens") -> str:
        """The text of token ids. Raises `InvalidRequestError` naming `field`."""
        return await asyncio.to_thread(self.engine.intake.decode, token_ids, field)

    def token_text(self, token_id: int) -> str:
        """What one token of the vocabulary stands for, alone."""
        return self.engine.token_text(token_id)

    async def reset_prefix_cache(self) -> None:
        """Forget everything that could be shared; running requests keep what they hold."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def reset() -> None:
            self.engine.scheduler.cache.forget()
            _call(loop, done.set)

        self._submit(reset)
        await done.wait()

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        streams: bool = True,
        timeout_s: float | None = None,
        arrived_at: float | None = None,
        max_tokens_field: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they grow, the last one `finished`. Closing the iterator aborts the request.

        With `streams` false the last one is the only one, which spares the engine the others. A
        caller that is slower than the engine gets fewer outputs, with longer deltas. See
        `Intake.request` for `max_tokens_field`.
        Raises `InvalidRequestError` before the first output, or later where a grammar turns out
        too complex to follow; `RequestTimeoutError` `timeout_s` after `arrived_at` on the event
        loop's clock, which is now where it is not given; `ShutDownError` if the engine is shut
        down and `EngineError` if it fails.
        """
        loop = asyncio.get_running_loop()
        arrived_at = loop.time() if arrived_at is None else arrived_at
        request = await asyncio.to_thread(
            self.engine.intake.request,
            request_id,
            prompt,
            sampling,
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            max_tokens_field=max_tokens_field,
            seed=self.engine.intake.draw_seed(sampling),  # here, where callers have an order
        )
        if timeout_s is not None and loop.time() >= arrived_at + timeout_s:
            raise RequestTimeoutError(timeout_s)
        stream = _Stream(loop)
        expiry = None
        if timeout_s is not None:
            late = RequestTimeoutError(timeout_s)
            expiry = loop.call_at(arrived_at + timeout_s, stream.put, late)
        text = prompt if isinstance(prompt, str) else None
        finished = False
        try:
            self._submit(partial(self._add, request, text, stream, streams))
            while not finished:
                output = await stream.next()
                finished = output.finished
                yield output
        finally:
            if expiry is not None:
                expiry.cancel()
            if not finished:
                self._inbox.put(partial(self._abort, request_id, stream))

    def _submit(self, order: Order) -> None:
        with self._closing:
            if self._closed:
                raise self._closing_error()
            self._inbox.put(order)

    # ---- in the engine's thread --------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                is_idle = not self.engine.has_unfinished
                self._take_orders(wait=is_idle and not self._do_chore())
                if self.engine.has_unfinished:
                    self._step()
                else:
                    self._stats = self.engine.stats()
        except Exception:
            logger.exception("the engine's thread ends")
        finally:
            with self._closing:
                self._closed = True
            self._take_orders(wait=False)  # whoever came last is told as well
            self._fail_all(self._closing_error)

    def _do_chore(self) -> bool:
        """Do one of the engine's chores; False if none is left."""
        return any(True for _ in islice(self.engine.chores, 1))

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
            outputs = self.engine.step()
        except StepFailedError as failed:
            self._fail(failed.errors)
            outputs = list(failed.outputs)
            self.engine.require_device()  # without it the thread ends, and with it the server
        except Exception:
            # A bug outside the forward pass: nothing that runs can be trusted, what comes can.
            logger.exception("the engine failed between steps; its requests are ended")
            self._fail_all(partial(EngineError, "the engine failed while computing this request"))
            outputs = []
        self._stats = self.engine.stats()  # first, so that who is told of an end can see it here
        self._deliver(outputs)

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        """Hand outputs over, waking each event loop once; wait for them where turns are taken."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, RequestOutput]]]
        batches = defaultdict(list)
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                batches[stream.loop].append((stream, output))
                if output.finished:
                    del self._streams[output.request_id]
        for loop, batch in batches.items():
            told = threading.Event()
            if _call(loop, partial(_put_all, batch, told)) and self.engine.takes_all_cores:
                told.wait(_TURN_S)

    def _add(self, request: Request, prompt: str | None, stream: _Stream, streams: bool) -> None:
        try:
            self.engine.add(request, prompt, streams=streams)
        except PagodaError as error:
            _call(stream.loop, partial(stream.put, error))
        except Exception:
            _call(stream.loop, partial(stream.put, EngineError("the engine failed")))
            raise
        else:
            self._streams[request.request_id] = stream

    def _abort(self, request_id: str, stream: _Stream) -> None:
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self.engine.abort(request_id)

    def _fail(self, errors: Mapping[str, PagodaError]) -> None:
        """End these requests, and tell each its error."""
        for request_id, error in errors.items():
            stream = self._streams.pop(request_id, None)
            if stream is not None:
                _call(stream.loop, partial(stream.put, error))
        for request_id in errors:
            self.engine.abort(request_id)

    def _fail_all(self, error: Callable[[], EngineError]) -> None:
        """End all requests; each is told an error of its own."""
        self._fail({request_id: error() for request_id in self._streams})

    def _closing_error(self) -> EngineError:
        """Why nothing is answered any more."""
        return ShutDownError() if self._stopping else EngineError("the engine has stopped")

    def _stop(self) -> None:
        self._stopping = True


class _Stream:
    """Where one caller waits. It holds one output at most: an unread one goes into the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: RequestOutput | PagodaError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, arrived: RequestOutput | PagodaError) -> None:
        """In the loop's thread: wake the caller."""
        unseen = self._arrived
        if isinstance(unseen, PagodaError):  # nothing comes after an error
            return
        if isinstance(unseen, RequestOutput) and isinstance(arrived, RequestOutput):
            arrived = arrived.after(unseen)
        self._arrived = arrived
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> RequestOutput:
        """The next output. Raises the error that came in its place."""
        if self._arrived is None:
            self._waiter = self.loop.create_future()
            await self._waiter
        arrived, self._arrived = self._arrived, None
        assert arrived is not None
        if isinstance(arrived, PagodaError):
            raise arrived
        return arrived


def _put_all(batch: Iterable[tuple[_Stream, RequestOutput]], told: threading.Event) -> None:
    """Wake the callers, and set `told` once they have run; not whom they wake in their turn."""
    for stream, output in batch:
        stream.put(output)
    asyncio.get_running_loop().call_soon(told.set)  # after those who have just been woken


def _call(loop: asyncio.AbstractEventLoop, what: Order) -> bool:
    """Run `what` in the loop's thread; a loop that is closed has nobody left to tell: False."""
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        logger.debug("the caller's event loop is closed")
        return False
    return True
