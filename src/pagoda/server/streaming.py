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
from pagoda.server.responses import ErrorResponse, Usage, json_of

if TYPE_CHECKING:
    from pagoda.engine.outputs import CompletionOutput, RequestOutput

_DONE = b"data: [DONE]\n\n"


class ChunkWriter(Protocol):
    """Turns outputs into the chunks of one API."""

    def chunks(self, item: PromptOutput) -> Iterable[bytes]:
        """What is new in `item`, as JSON; empty while text is held back."""
        ...

    def usage_of(self, outputs: Sequence[RequestOutput]) -> Usage:
        """The usage of one output per prompt."""
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
        """Characters of the tokens that were sent: the next token's text offset."""
        self.num_calls = 0
        """Calls of tools that were sent."""
        self.finished = False

    def new_text(self, choice: CompletionOutput) -> str:
        return choice.text[self.num_characters :]

    def has_news(self, choice: CompletionOutput) -> bool:
        """There is text, a log-probability or the end that has not been sent."""
        return not self.finished and (
            bool(self.new_text(choice)) or self.has_news_beside_text(choice)
        )

    def has_text_alone(self, choice: CompletionOutput) -> bool:
        """What is new is text: it is neither the first news nor the last, and has no candidates."""
        return self.is_open and choice.finish_reason is None and choice.logprobs is None

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
    """Sends what is new in each output as soon as it is there, in one piece.

    However it ends it closes the outputs, so that the engine aborts what still runs.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: PromptOutput,
        outputs: AsyncGenerator[PromptOutput, None],
        writer: ChunkWriter,
        include_usage: bool,
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__((), headers=headers)
        self._first = first
        self._outputs = outputs
        self._writer = writer
        self._include_usage = include_usage

    async def stream_response(self, send: Send) -> None:
        try:
            start = {"type": "http.response.start", "status": self.status_code}
            await send({**start, "headers": self.raw_headers})
            await self._send_events(send)
            await send({"type": "http.response.body", "body": _DONE, "more_body": False})
        finally:
            with anyio.CancelScope(shield=True):
                await self._outputs.aclose()

    async def _send_events(self, send: Send) -> None:
        async with aclosing(self._pieces()) as pieces:
            async for events in pieces:
                if events:
                    await send({"type": "http.response.body", "body": events, "more_body": True})

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Events as they are to be sent, empty ones too; the last tells what has failed.

        Nothing is sent in here: a client that has gone is no failure of the engine's.
        """
        first, writer = self._first, self._writer
        last: dict[int, RequestOutput] = {first.prompt_index: first.output}
        try:
            yield _events(writer.chunks(first))
            async for item in self._outputs:
                last[item.prompt_index] = item.output
                yield _events(writer.chunks(item))
        except Exception as error:
            yield _events([json_of(ErrorResponse(error=detail_of(error)))])
        else:
            if self._include_usage:
                usage = writer.usage_of(list(last.values()))
                yield _events([json_of(writer.usage_chunk(usage))])


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
    return EventStream(first, outputs, writer, include_usage)


async def _next(outputs: AsyncGenerator[PromptOutput, None]) -> PromptOutput:
    return await anext(outputs)


def _events(chunks: Iterable[bytes]) -> bytes:
    """An event for each of the chunks; nothing where there is none."""
    return b"".join([b"data: " + chunk + b"\n\n" for chunk in chunks])
