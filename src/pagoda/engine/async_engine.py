"""`AsyncEngine`: the engine for callers in event loops, such as a server's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pagoda.cache.miss import Miss
from pagoda.engine.async_tokenizer import AsyncTokenizer
from pagoda.engine.build import assemble, load_model
from pagoda.engine.cache_snapshot import CacheSnapshot
from pagoda.engine.core import Engine
from pagoda.engine.engine_thread import EngineThread, Order
from pagoda.engine.intake import (
    require_options,
    require_params,
    require_request_id,
    require_timeout,
)
from pagoda.engine.intake_threads import IntakeThreads
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.sessions.desk import SessionDesk
from pagoda.engine.slow_notice import told_if_slow
from pagoda.engine.stats import EngineStats
from pagoda.engine.step_watch import HungStep
from pagoda.engine.stream import Stream
from pagoda.engine.usage import Usage
from pagoda.errors import PagodaError, RequestTimeoutError
from pagoda.models.weights import OnProgress
from pagoda.request import DEFAULT_REQUEST_OPTIONS, RequestOptions, SamplingParams
from pagoda.sizing.held_weights import HeldWeights

Result = TypeVar("Result")

_FEW_TOKENS = 8192
"""To check so many ids takes half a millisecond; a thread that gives way to steps begins later."""


class AsyncEngine:
    """An `Engine` in a thread of its own. The event loop never waits for a step.

    engine = AsyncEngine.load(EngineOptions())
    engine.start()
    async for output in engine.generate("The capital of France is", sampling, request_id="1"):
        print(output.outputs[0].delta)
    await engine.shutdown()
    """

    def __init__(
        self,
        engine: Engine,
        *,
        warm_up_draws: Callable[[], None] = lambda: None,
        chores: Iterator[None] | None = None,
        takes_all_cores: bool = False,
        held: HeldWeights | None = None,
    ) -> None:
        """See `Running` for what comes beside the engine.

        An engine that takes all the cores there are takes turns with its callers: before the next
        step they have a moment to pass on what they got. A thread that has to share its core in the
        middle of a step holds up all others, which takes longer than the moment.
        """
        self.engine = engine
        """Once it has started its thread alone may call it, but for `intake` and `watch`."""
        self.model_name = engine.model_name
        self.model_names = engine.model_names
        self.max_model_len = engine.max_model_len
        self.max_num_seqs = engine.scheduler.max_num_seqs
        """Sequences that run at once."""
        self.held = held
        """What the model's weights take; None: nobody has told."""
        self.stored = engine.stored
        """How keys and values are stored; None likewise."""
        self.timeline = engine.timeline
        """What requests have taken; to be read alone."""
        self.curve = engine.curve
        """What other sizes of the cache would find, to be read alone; None: nobody tells."""
        self.block_lives = engine.block_lives
        """How long blocks stay in the cache; to be read alone."""
        self.transfers = engine.transfers
        """Loads and stores between the cache and its tiers; to be read alone."""
        self._intake_threads = IntakeThreads()
        self.tokenizer = AsyncTokenizer(
            engine.intake.tokenizer, engine.vocabulary, self._intake_threads
        )
        self._warm_up_draws = warm_up_draws
        self._thread = EngineThread(engine, chores=chores or iter(()), gives_turns=takes_all_cores)

    @classmethod
    def load(cls, options: EngineOptions, on_load: OnProgress | None = None) -> AsyncEngine:
        """Load the model and allocate the cache; the engine is not started.

        Raises `RefusedError` for options, model files or memory that will not do.
        """
        model = load_model(options, on_load)
        engine, running = assemble(model, options)
        return cls(
            engine,
            held=model.held,
            warm_up_draws=running.warm_up_draws,
            chores=running.chores,
            takes_all_cores=running.takes_all_cores,
        )

    @property
    def sessions(self) -> SessionDesk:
        """What becomes of conversations by name; to be asked in threads, since it waits."""
        return SessionDesk(self.engine.sessions, self.use_cache)

    @property
    def is_alive(self) -> bool:
        """The engine's thread runs: requests will be answered."""
        return self._thread.is_alive

    @property
    def step_age_s(self) -> float:
        """Seconds since the running step began; 0 while none runs."""
        return self.engine.watch.age_s

    def hung_step(self, timeout_s: float) -> HungStep | None:
        """The running step, if it takes longer than it may; see `StepWatch.hung`."""
        return self.engine.watch.hung(timeout_s)

    def where(self) -> str:
        """The lines of code that the engine's thread is at, the outermost first."""
        return self._thread.where()

    def warm_up(self) -> None:
        """Prepare what the first draw and the first constraint would wait for. Before `start`."""
        with told_if_slow("preparing the sampler"):
            self._warm_up_draws()
            self.engine.intake.prepare_grammars()

    def start(self) -> None:
        """Start the engine's thread, once. Raises `EngineError` in a process that was forked."""
        self._thread.start()

    async def shutdown(self, timeout_s: float | None = None) -> None:
        """End every request that is left and wait for the engine's thread to finish; what is on
        its way to tiers is stored, for some seconds at most.

        A step that has not ended after `timeout_s` is waited for no longer: requests are told, and
        nothing is stored. None: it is waited for.
        """
        self._intake_threads.close()
        if await asyncio.to_thread(self._thread.stop, timeout_s):
            await asyncio.to_thread(self.engine.close)

    def stats(self) -> EngineStats:
        """As of the last step."""
        return self._thread.stats

    def usage(self) -> dict[str, Usage]:
        """What each tenant has had, as of now."""
        return self.engine.usage()

    async def reset_prefix_cache(self) -> None:
        """Forget everything that could be shared; running requests keep what they hold."""
        await self._between_steps(self.engine.reset_prefix_cache)

    async def look_up(
        self,
        prompt: str | Sequence[int],
        options: RequestOptions = DEFAULT_REQUEST_OPTIONS,
        *,
        prompt_logprobs: int | None = None,
    ) -> tuple[Miss, Sequence[int]]:
        """Why no more of a prompt would be found in the cache if it came now, and its tokens.

        With `prompt_logprobs`, as in `SamplingParams`, nothing would be. Raises
        `InvalidRequestError` for a prompt that would be refused.
        """
        require_options(options)
        size = len(prompt) if isinstance(prompt, str) else 0
        sampling = SamplingParams(max_tokens=1, prompt_logprobs=prompt_logprobs)
        make = partial(self.engine.intake.request, "", prompt, sampling, options, seed=0)
        request = await self._intake_threads.run(options.tenant, size, make)
        miss = await self._between_steps(partial(self.engine.look_up, request))
        return miss, request.prompt_token_ids

    async def cache_snapshot(self) -> CacheSnapshot:
        """The cache and the sequences that are in it, taken between two steps.

        Raises `EngineError` before the engine's thread has started, and once it has ended.
        """
        return await self._between_steps(self.engine.cache_snapshot)

    def use_cache(self, do: Callable[[], Result]) -> Result:
        """What `do` returns once the engine's thread has done it between two steps, for which this
        waits; the event loop must not. See `Engine.use_cache`."""
        return self._ordered(partial(self.engine.use_cache, do)).result()

    async def _between_steps(self, do: Callable[[], Result]) -> Result:
        """What the engine's thread gives back, or raises. Where it breaks off nobody starts over:
        `do` changes nothing, or sees to that itself."""
        return await asyncio.wrap_future(self._ordered(do))

    def _ordered(self, do: Callable[[], Result]) -> Future[Result]:
        """What will come of it once the engine's thread has done it between two steps."""
        done: Future[Result] = Future()
        done.set_running_or_notify_cancel()  # it is done even if nobody waits for it

        def tell() -> None:
            result = do()
            with suppress(InvalidStateError):  # it hung, and was told to be given up
                done.set_result(result)

        def refuse(error: PagodaError) -> None:
            with suppress(InvalidStateError):
                done.set_exception(error)

        self._thread.submit(Order(tell, refuse))
        return done

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        options: RequestOptions = DEFAULT_REQUEST_OPTIONS,
        streams: bool = True,
        timeout_s: float | None = None,
        arrived_at: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they grow, the last one `finished`. Closing the iterator aborts the request.

        With `streams` false the last one is the only one, which spares the engine the others. A
        caller that is slower than the engine gets fewer outputs, with longer deltas.
        Raises `InvalidRequestError` before the first output, or later where a grammar turns out
        too complex to follow; `RequestTimeoutError` `timeout_s` after `arrived_at` on the event
        loop's clock, which is now where it is not given; `ShutDownError` if the engine is shut
        down and `EngineError` if it fails, or was not started.
        """
        loop = asyncio.get_running_loop()
        arrived_at = loop.time() if arrived_at is None else arrived_at
        intake = self.engine.intake
        require_request_id(request_id)
        require_params(sampling)
        require_options(options)
        require_timeout(timeout_s)
        seed = intake.draw_seed(sampling)  # here, where callers have an order
        make = partial(intake.request, request_id, prompt, sampling, options, seed=seed)
        expires_at = None if timeout_s is None else arrived_at + timeout_s
        late = RequestTimeoutError(math.inf if timeout_s is None else timeout_s)
        if _is_made_at_once(prompt, sampling):
            request = make()
        else:
            size = len(prompt) if isinstance(prompt, str) else 0
            try:
                async with asyncio.timeout_at(expires_at):
                    request = await self._intake_threads.run(options.tenant, size, make)
            except TimeoutError:
                raise late from None
        stream = Stream(loop)
        expiry = None
        if expires_at is not None:
            expiry = loop.call_at(expires_at, stream.put, late)
        finished = False
        try:
            text = prompt if isinstance(prompt, str) else None
            self._thread.ask(request, text, stream, streams=streams)
            while not finished:
                output = await stream.next()
                finished = output.finished
                yield output
        finally:
            if expiry is not None:
                expiry.cancel()
            if not finished:
                self._thread.abandon(request_id, stream)


def _is_made_at_once(prompt: str | Sequence[int], sampling: SamplingParams) -> bool:
    """A few token ids, and nothing that is tokenised or compiled."""
    is_few = isinstance(prompt, (list, tuple)) and len(prompt) <= _FEW_TOKENS
    return is_few and sampling.structured_outputs is None and not sampling.bad_words
