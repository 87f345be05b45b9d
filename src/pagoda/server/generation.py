"""The prompts of one HTTP request, run side by side by the engine.

    body ──> Generation ──┬─ prompt 0 ── AsyncEngine.generate ──┐
                          └─ prompt 1 ── AsyncEngine.generate ──┴──> PromptOutput, PromptOutput, …

Whoever closes the outputs aborts all prompts that still run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fastapi import Request

from pagoda.request import RequestOptions, SamplingParams
from pagoda.server.errors import ClientGoneError
from pagoda.server.explanation import CacheExplanation, PromptLookup
from pagoda.server.keys import ANYBODY, Holder
from pagoda.server.responses import CompletionTokensDetails, PromptTokensDetails, Usage
from pagoda.server.tally import Tally
from pagoda.server.tool_calls import NO_TOOLS, ToolReader

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import RequestOutput

Result = TypeVar("Result")


class PromptOutput(NamedTuple):
    """What there is so far for the prompt at `prompt_index` of the HTTP request."""

    prompt_index: int
    output: RequestOutput


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompts are told as well."""

    texts: Sequence[str]
    """Each prompt's text."""
    alone: bool
    """Nothing is told after them."""
    prompt_logprobs: int | None = None
    """Candidates of each of their tokens that are told beside them; None: none are."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What one HTTP request asks of the engine."""

    engine: AsyncEngine
    request_id: str
    prompts: Sequence[str | list[int]]
    sampling: SamplingParams
    options: RequestOptions
    timeout_s: float | None = None
    """From its arrival to its last output."""
    arrived_at: float | None = None
    """On the event loop's clock, in seconds."""
    echo: Echo | None = None
    tally: Tally = field(default_factory=Tally)
    """Keeps count of what comes out."""
    holder: Holder = ANYBODY
    """Who asks."""
    tools: ToolReader = NO_TOOLS
    """Finds thoughts and the calls of tools in an answer."""

    def choice_index(self, prompt_index: int, choice: int) -> int:
        """OpenAI numbers the choices of all prompts in one row."""
        return prompt_index * self.sampling.n + choice

    @property
    def num_prompt_candidates(self) -> int | None:
        """Those of each token of a prompt, told beside what is echoed; None: none are."""
        return self.sampling.prompt_logprobs if self.echo is None else self.echo.prompt_logprobs

    def text_bytes(self) -> Callable[[int], bytes]:
        """What each token is in the text of an answer."""
        return self.engine.tokenizer.text_bytes(self.sampling, self.options.shown_ids)

    def outputs(self, *, streams: bool = True) -> AsyncGenerator[PromptOutput, None]:
        """Outputs of all prompts as they come, or only the last of each where nobody `streams`.
        Closing it aborts what still runs.

        Raises what `AsyncEngine.generate` raises, for any of the prompts.
        """
        return self._one(streams) if len(self.prompts) == 1 else self._many(streams)

    async def _one(self, streams: bool, index: int = 0) -> AsyncGenerator[PromptOutput, None]:
        stream = self.engine.generate(
            self.prompts[index],
            self.sampling,
            request_id=f"{self.request_id}-{index}",
            options=self.options,
            streams=streams,
            timeout_s=self.timeout_s,
            arrived_at=self.arrived_at,
        )
        async with aclosing(stream) as outputs:
            async for output in outputs:
                self.tally.note(index, output)
                yield PromptOutput(index, output)

    async def _many(self, streams: bool) -> AsyncGenerator[PromptOutput, None]:
        """Each prompt has a task of its own, which waits until its output is taken."""
        events: asyncio.Queue[_Event] = asyncio.Queue(maxsize=1)
        indices = range(len(self.prompts))
        pumps = [asyncio.create_task(self._pump(index, events, streams)) for index in indices]
        try:
            remaining = len(pumps)
            while remaining:
                event = await events.get()
                if event.error is not None:
                    raise event.error
                if event.output is None:
                    remaining -= 1
                else:
                    yield event.output
        finally:
            await _cancel(pumps)

    async def _pump(self, index: int, events: asyncio.Queue[_Event], streams: bool) -> None:
        try:
            async with aclosing(self._one(streams, index)) as outputs:
                async for output in outputs:
                    await events.put(_Event(output))
        except Exception as error:
            await events.put(_Event(error=error))
        else:
            await events.put(_Event())

    def explained(self, outputs: Sequence[RequestOutput]) -> list[CacheExplanation]:
        """Why no more of each prompt was in the cache, as whoever asks may know it."""
        engine = self.engine
        token_bytes, lossy_form = engine.tokenizer.token_bytes, engine.transfers.lossy_form
        return [
            PromptLookup.of(output.cache_miss, output.prompt_token_ids).told(
                self.holder, token_bytes, lossy_form=lossy_form
            )
            for output in outputs
            if output.cache_miss is not None
        ]

    async def finished(self) -> list[RequestOutput]:
        """The last output of each prompt, in the order of the prompts."""
        last: dict[int, RequestOutput] = {}
        async with aclosing(self.outputs(streams=False)) as outputs:
            async for item in outputs:
                last[item.prompt_index] = item.output
        return [last[index] for index in range(len(self.prompts))]


@dataclass(frozen=True, slots=True)
class _Event:
    """An output or an error of one prompt; with neither, the prompt has ended."""

    output: PromptOutput | None = None
    error: Exception | None = None


def usage_of(
    outputs: Sequence[RequestOutput],
    *,
    prompts_alone: bool = False,
    reasoning_tokens: int | None = None,
) -> Usage:
    """Tokens in and out of one output per prompt; none out where only prompts are told."""
    prompt_tokens = sum(output.num_prompt_tokens for output in outputs)
    completion_tokens = 0
    if not prompts_alone:
        completion_tokens = sum(len(c.token_ids) for output in outputs for c in output.outputs)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(output.num_cached_tokens for output in outputs)
        ),
        completion_tokens_details=None
        if reasoning_tokens is None
        else CompletionTokensDetails(reasoning_tokens=reasoning_tokens),
    )


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled as soon as the client closes the connection.

    Raises `ClientGoneError` then. The body of the request has been read already.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        await _cancel([working, watching])


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel the tasks that still run, and wait until they have cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
