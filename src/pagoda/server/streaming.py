"""Answers sent while they are made, as server-sent events.

The status line leaves only when the first output is there, so input that is refused gets its 4xx.
What fails later, a grammar that cannot be followed any more too, is told in events of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol

import anyio
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Scope, Send

from pagoda.server.body_sender import BodySender
from pagoda.server.errors import RejectedError, detail_of
from pagoda.server.generation import Generation, PromptOutput, unless_disconnected
from pagoda.server.responses import ErrorDetail
from pagoda.server.tally import tally_of
from pagoda.server.text_offsets import TextOffsets

if TYPE_CHECKING:
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


class EventWriter(Protocol):
    """Turns outputs into the events of one API. Each method gives whole events, or nothing."""

    def news(self, item: PromptOutput) -> bytes:
        """What is new in `item`; nothing while text is held back."""
        ...

    def takes_long(self, item: PromptOutput) -> bool:
        """`news` should be called beside the event loop: there is much to write."""
        ...

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[bytes]:
        """What comes behind the last output of each prompt, as it is to be sent."""
        ...

    def ends_long(self) -> bool:
        """What `end` gives should be taken beside the event loop: there is much to write."""
        ...

    def failure(self, detail: ErrorDetail) -> bytes:
        """What comes in place of the rest where something has failed."""
        ...


class ChoiceCursor:
    """How much of one choice has been sent."""

    def __init__(self, *, tells_tokens: bool = False) -> None:
        """With `tells_tokens` the ids of tokens are sent beside the text."""
        self._tells_tokens = tells_tokens
        self.is_open = False
        """Something of it has been sent."""
        self.num_characters = 0
        self.num_tokens = 0
        self.offsets = TextOffsets()
        """Where the next tokens begin in the text."""
        self.has_calls = False
        """Something of a tool's call was sent."""
        self.finished = False

    def new_text(self, choice: CompletionOutput) -> str:
        return choice.text[self.num_characters :]

    def has_news(self, choice: CompletionOutput) -> bool:
        """There is text, a token that is told or the end that has not been sent."""
        return not self.finished and (
            bool(self.new_text(choice)) or self.has_news_beside_text(choice)
        )

    def has_text_alone(self, choice: CompletionOutput) -> bool:
        """What is new is text: it is neither the first news nor the last, and tells no tokens."""
        return self.is_open and choice.finish_reason is None and not self._is_told(choice)

    def has_news_beside_text(self, choice: CompletionOutput) -> bool:
        """There is a token that is told, or the end of a choice that has not ended before."""
        grown = self._is_told(choice) and len(choice.token_ids) > self.num_tokens
        return grown or choice.finish_reason is not None

    def _is_told(self, choice: CompletionOutput) -> bool:
        return self._tells_tokens or choice.logprobs is not None

    def advance(self, choice: CompletionOutput) -> None:
        """All of `choice` has been sent."""
        self.is_open = True
        self.num_characters = len(choice.text)
        self.num_tokens = len(choice.token_ids)
        self.finished = choice.finish_reason is not None


class EventStream(StreamingResponse):
    """Sends what is new in each output as soon as it is there.

    However it ends it closes the outputs, so that the engine aborts what still runs. A large piece
    for which no room is left among unread answers ends it too: the first one is answered as
    `RejectedError` is, a later one by what the writer tells of a failure.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        scope: Scope,
        first: PromptOutput,
        outputs: AsyncGenerator[PromptOutput, None],
        writer: EventWriter,
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__((), headers=headers)
        self._scope = scope
        self._first = first
        self._outputs = outputs
        self._writer = writer

    async def stream_response(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        sender = BodySender(self._scope, send, {**start, "headers": self.raw_headers})
        try:
            await self._send_events(sender)
            await sender.end()
        finally:
            with anyio.CancelScope(shield=True):
                await self._outputs.aclose()

    async def _send_events(self, sender: BodySender) -> None:
        async with aclosing(self._pieces()) as pieces:
            async for events in pieces:
                try:
                    await sender.send(events)
                except RejectedError as error:
                    if not sender.has_begun:
                        raise
                    await self._send_failure(sender, error)
                    return

    async def _send_failure(self, sender: BodySender, error: RejectedError) -> None:
        detail = detail_of(error)
        tally_of(self._scope).error = detail.code
        with suppress(RejectedError):  # it tells all once more, and is as large
            await sender.send(self._writer.failure(detail))

    async def _news(self, item: PromptOutput) -> bytes:
        if self._writer.takes_long(item):
            return await asyncio.to_thread(self._writer.news, item)
        return self._writer.news(item)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """Events as they are to be sent, empty ones too; the last tells the end, or what failed.

        Nothing is sent in here: a client that has gone is no failure of the engine's.
        """
        item, writer = self._first, self._writer
        last: dict[int, RequestOutput] = {item.prompt_index: item.output}
        try:
            yield await self._news(item)
            async for item in self._outputs:
                last[item.prompt_index] = item.output
                yield await self._news(item)
        except Exception as error:
            yield writer.failure(detail_of(error))
        else:
            ends = iter(writer.end(list(last.values())))
            while (events := await self._next_of(ends)) is not None:
                yield events

    async def _next_of(self, ends: Iterator[bytes]) -> bytes | None:
        """Only one of them is in memory at a time; None: there are no more."""
        if self._writer.ends_long():
            return await asyncio.to_thread(next, ends, None)
        return next(ends, None)


async def stream(request: Request, generation: Generation, writer: EventWriter) -> EventStream:
    """Start the generation and answer with its events.

    Raises what the engine raises before the first output, and `ClientGoneError`.
    """
    outputs = generation.outputs()
    try:
        first = await unless_disconnected(request, _next(outputs))
    except BaseException:
        await outputs.aclose()
        raise
    return EventStream(request.scope, first, outputs, writer)


async def _next(outputs: AsyncGenerator[PromptOutput, None]) -> PromptOutput:
    return await anext(outputs)


def event(data: bytes, name: str = "") -> bytes:
    """A server-sent event of one line of data; `name` is its type, where the API has any."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + data + b"\n\n"
