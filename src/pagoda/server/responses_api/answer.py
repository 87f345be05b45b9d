"""From what the engine makes to a response, whole or in events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pagoda.server.answer import Answer
from pagoda.server.generation import Generation, PromptOutput, usage_of
from pagoda.server.logprobs import chat_entries
from pagoda.server.responses import ErrorDetail, TokenLogprob, json_of
from pagoda.server.responses_api.body import ResponsesRequest
from pagoda.server.responses_api.events import ErrorEvent, Event, ResponseEvent
from pagoda.server.responses_api.output import Output
from pagoda.server.responses_api.response import (
    IncompleteDetails,
    ResponseFailure,
    ResponseObject,
    ResponseStatus,
    ResponseUsage,
)
from pagoda.server.streaming import ChoiceCursor, event
from pagoda.server.telling import cut_short
from pagoda.server.tool_calls import AnswerReader, Reading

if TYPE_CHECKING:
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


class ResponseAnswer(Answer):
    """Shapes the one choice of one prompt."""

    def __init__(
        self,
        generation: Generation,
        *,
        body: ResponsesRequest,
        keep: Callable[[ResponseObject], None] | None,
    ) -> None:
        """`keep`, if any, takes a response that has ended, before its last event is sent."""
        super().__init__(generation)
        self._keep = keep
        self._output = Output(body.offered_tools().in_namespaces)
        self._cursor = ChoiceCursor()
        tools = generation.tools
        self._reader: AnswerReader | None = None if tools is None else tools.begin()
        self._num_events = 0
        ignored = (each.field for each in body.ignored())
        generation.tally.ignored = tuple(dict.fromkeys(ignored))
        self._response = ResponseObject(
            id=generation.request_id,
            created_at=int(time.time()),
            model=generation.engine.model_name,
            temperature=generation.sampling.temperature,
            top_p=generation.sampling.top_p,
            store=keep is not None,
            **body.told(),
        )

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        [output] = outputs
        for _ in self._news(output.outputs[0]):
            pass
        for _ in self._end(output):
            pass
        return json_of(self._response)

    def news(self, item: PromptOutput) -> bytes:
        opening = () if self._num_events else self._opening()
        news = self._news(item.output.outputs[0])
        return b"".join([*map(self._sent, opening), *map(self._sent, news)])

    def takes_long(self, item: PromptOutput) -> bool:
        return self._generation.sampling.logprobs is not None

    def ends_long(self) -> bool:
        """All that was said and asked is told, and kept, once more."""
        return True

    def end(self, outputs: Sequence[RequestOutput]) -> bytes:
        [output] = outputs
        return self._all_sent(self._end(output))

    def failure(self, detail: ErrorDetail) -> bytes:
        return self._all_sent(self._failure(detail))

    def _opening(self) -> Iterator[Event]:
        yield self._event("created")
        yield self._event("in_progress")

    def _news(self, choice: CompletionOutput) -> Iterator[Event]:
        cursor = self._cursor
        text = cursor.new_text(choice)
        reading = Reading(text)
        if self._reader is not None:
            reading = self._reader.feed(text, finished=choice.finished)
        logprobs = self._logprobs(choice)
        cursor.advance(choice)
        yield from self._output.add(reading, logprobs)

    def _end(self, output: RequestOutput) -> Iterator[Event]:
        is_cut = output.outputs[0].finish_reason == "length"
        status: ResponseStatus = "incomplete" if is_cut else "completed"
        yield from self._output.end("incomplete" if is_cut else "completed")
        if is_cut:
            self._response.incomplete_details = IncompleteDetails()
        else:
            self._response.completed_at = int(time.time())
        cut = cut_short(
            output,
            self._generation.options.max_tokens_field,
            self._generation.sampling.max_tokens,
            self._generation.engine.max_model_len,
        )
        self._response.warnings = [*(self._response.warnings or ()), *cut] or None
        self._response.usage = ResponseUsage.of(usage_of([output]))
        self._finish(status)
        if self._keep is not None:
            self._keep(self._response)
        yield self._event(status)

    def _failure(self, detail: ErrorDetail) -> Iterator[Event]:
        yield from self._output.close("incomplete")
        self._response.error = ResponseFailure(
            code="server_error" if detail.type == "server_error" else "invalid_prompt",
            message=detail.message,
        )
        self._finish("failed")
        yield ErrorEvent(code=detail.code, message=detail.message, param=detail.param)
        yield self._event("failed")

    def _finish(self, status: ResponseStatus) -> None:
        self._response.status = status
        self._response.output = self._output.items

    def _logprobs(self, choice: CompletionOutput) -> list[TokenLogprob]:
        if choice.logprobs is None:
            return []
        start, num_top = self._cursor.num_tokens, self._generation.sampling.logprobs or 0
        entries = chat_entries(choice.token_ids[start:], choice.logprobs[start:], num_top)
        return [TokenLogprob(**entry) for entry in entries]

    def _event(self, kind: str) -> Event:
        return ResponseEvent(type=f"response.{kind}", response=self._response)

    def _all_sent(self, events: Iterable[Event]) -> bytes:
        return b"".join(map(self._sent, events))

    def _sent(self, told: Event) -> bytes:
        told.sequence_number = self._num_events
        self._num_events += 1
        return event(json_of(told), told.type)
