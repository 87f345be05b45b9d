"""Answers sent while they are made: server-sent events, one JSON chunk each, then `[DONE]`.

The status line leaves only when the first output is there, so input that is refused gets its 4xx.
What fails later, a grammar that cannot be followed any more too, is told in an event of OpenAI's
error shape.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import anyio
from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Send

from pagoda.server.errors import detail_of
from pagoda.server.generation import Generation, PromptOutput, unless_disconnected
from pagoda.server.responses import ErrorResponse, Usage

if TYPE_CHECKING:
    from pagoda.engine.outputs import CompletionOutput, RequestOutput

_DONE = b"data: [DONE]\n\n"


class ChunkWriter(Protocol):
    """Turns outputs into the chunks of one API."""

    def chunks(self, item: PromptOutput) -> Iterable[BaseModel]:
        """What is new in `item`; empty while text is held back."""
        ...

    def usage_of(self, outputs: Sequence[RequestOutput]) -> Usage:
        """Of one output per prompt."""
        ...

    def usage_chunk(self, usage: Usage) -> BaseModel:
        """The last chunk, without choices."""
        ...


class ChoiceCursor:
    """How much of one choice has been sent."""

    def __init__(self) -> None:
        self.is_open = False
        """Something of it has been sent."""
        self.num_characters = 0
        self.num_tokens = 0
        self.num_token_characters = 0
        """Of the sent tokens' own texts: where the next token's text offset is."""
        self.num_calls = 0
        """Of tools."""
        self.finished = False

    def new_text(self, choice: CompletionOutput) -> str:
        return choice.text[self.num_characters :]

    def has_news(self, choice: CompletionOutput) -> bool:
        """There is text, a log-probability or the end that has not been sent."""
        return not self.finished and (
            bool(self.new_text(choice)) or self.has_news_beside_text(choice)
        )

    def has_news_beside_text(self, choice: CompletionOutput) -> bool:
        """There is a log-probability or the end of a choice that has not ended before."""
        grown = choice.logprobs is not None and len(choice.token_ids) > self.num_tokens
        return grown or choice.finish_reason is not None

    def advance(self, choice: CompletionOutput, num_calls: int = 0) -> None:
        """All of `choice` has been sent, and so many calls of tools."""
        self.num_calls = num_calls
        self.is_open = True
        self.num_characters = len(choice.text)
        self.num_tokens = len(choice.token_ids)
        self.finished = choice.finish_reason is not None


class EventStream(StreamingResponse):
    """A streaming response that closes its events however it ends, so that the engine aborts."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            with anyio.CancelScope(shield=True):
                await self._events.aclose()


async def stream(
    request: Request, generation: Generation, writer: ChunkWriter, include_usage: bool
) -> EventStream:
    """Start the generation and answer with its events.

    Raises what the engine raises before the first output, and `ClientGoneError`.
    """
    outputs = generation.outputs()
    try:
        first = await unless_disconnected(request, _next(outputs))
    except BaseException:
        await outputs.aclose()
        raise
    return EventStream(_events(first, outputs, writer, include_usage))


async def _next(outputs: AsyncGenerator[PromptOutput, None]) -> PromptOutput:
    return await anext(outputs)


async def _events(
    first: PromptOutput,
    outputs: AsyncGenerator[PromptOutput, None],
    writer: ChunkWriter,
    include_usage: bool,
) -> AsyncGenerator[bytes, None]:
    last: dict[int, RequestOutput] = {first.prompt_index: first.output}
    async with aclosing(outputs):
        try:
            for chunk in writer.chunks(first):
                yield _event(chunk)
            async for item in outputs:
                last[item.prompt_index] = item.output
                for chunk in writer.chunks(item):
                    yield _event(chunk)
        except Exception as error:
            yield _event(ErrorResponse(error=detail_of(error)))
        else:
            if include_usage:
                yield _event(writer.usage_chunk(writer.usage_of(list(last.values()))))
    yield _DONE


def _event(chunk: BaseModel) -> bytes:
    return b"data: " + chunk.model_dump_json().encode("utf-8") + b"\n\n"
