"""From what the engine makes to a response, whole or in events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal

from pagoda.server.answer import Answer
from pagoda.server.generation import Generation, PromptOutput, usage_of
from pagoda.server.json_parts import list_json, object_json
from pagoda.server.logprobs import MANY_LOGPROBS, chat_entries
from pagoda.server.responses import ErrorDetail
from pagoda.server.responses_api.body import ResponsesRequest
from pagoda.server.responses_api.events import ErrorEvent, Event, ResponseEvent
from pagoda.server.responses_api.input_items import Item
from pagoda.server.responses_api.output import Output
from pagoda.server.responses_api.response import (
    IncompleteDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    ToldReasoning,
)
from pagoda.server.streaming import ChoiceCursor, event
from pagoda.server.telling import cut_short
from pagoda.server.thought_tokens import ThoughtTokens
from pagoda.server.token_names import TokenNames

if TYPE_CHECKING:
    from pagoda.engine.outputs import CompletionOutput, Logprob, RequestOutput


class ResponseAnswer(Answer):
    """Shapes the one choice of one prompt."""

    def __init__(
        self,
        generation: Generation,
        *,
        body: ResponsesRequest,
        keep: Callable[[bytes, Sequence[Item]], None] | None,
    ) -> None:
        """`keep`, if any, takes a response that has ended, as JSON, and the items of its answer,
        before its last event is sent."""
        super().__init__(generation)
        self._keep = keep
        self._output = Output(body.offered_tools.in_namespaces)
        self._cursor = ChoiceCursor()
        self._reader = generation.tools.begin()
        self._num_events = 0
        self._names = TokenNames(generation.engine.tokenizer.token_bytes)
        self._thought_tokens = ThoughtTokens(generation.text_bytes())
        unread = body.unread(generation.engine.tokenizer.template_names)
        ignored = [*unread, *body.ignored()]
        generation.tally.ignored = tuple(dict.fromkeys(each.field for each in ignored))
        self._response = ResponseObject(
            id=generation.request_id,
            created_at=int(time.time()),
            model=generation.engine.model_name,
            temperature=generation.sampling.temperature,
            top_p=generation.sampling.top_p,
            store=keep is not None,
            warnings=[each.warning for each in ignored] or None,
            reasoning=ToldReasoning(effort=None if unread else body.effort),
            **body.told(),
        )

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        [output] = outputs
        [last] = deque(chain(self._news(output.outputs[0]), self._end(output)), maxlen=1)
        assert isinstance(last, ResponseEvent)
        return last.response

    def news(self, item: PromptOutput) -> bytes:
        opening = () if self._num_events else self._opening()
        news = self._news(item.output.outputs[0])
        return b"".join([*map(self._sent, opening), *map(self._sent, news)])

    def takes_long(self, item: PromptOutput) -> bool:
        num_new = len(item.output.outputs[0].token_ids) - self._cursor.num_tokens
        num_top = self._generation.sampling.logprobs
        return num_top is not None and num_new * (1 + num_top) > MANY_LOGPROBS

    def ends_long(self) -> bool:
        """All that was said and asked is told, and kept, once more."""
        return True

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[bytes]:
        [output] = outputs
        return map(self._sent, self._end(output))

    def failure(self, detail: ErrorDetail) -> bytes:
        return b"".join(map(self._sent, self._failure(detail)))

    def _opening(self) -> Iterator[Event]:
        written = self._written()
        yield self._event("created", written)
        yield self._event("in_progress", written)

    def _news(self, choice: CompletionOutput) -> Iterator[Event]:
        reading = self._reader.feed(self._cursor.new_text(choice), finished=choice.finished)
        if choice.logprobs is not None:
            self._add_tokens(choice, choice.logprobs)
        self._cursor.advance(choice)
        yield from self._output.add(reading)

    def _end(self, output: RequestOutput) -> Iterator[Event]:
        [choice] = output.outputs
        is_cut = choice.finish_reason == "length"
        status: Literal["incomplete", "completed"] = "incomplete" if is_cut else "completed"
        yield from self._output.end(status, len(choice.text))
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
        self._response.usage = self._usage(output, choice)
        self._response.status = status
        written = self._written()
        if self._keep is not None:
            self._keep(written, [item.said for item in self._output.ended])
        yield self._event(status, written)

    def _usage(self, output: RequestOutput, choice: CompletionOutput) -> ResponseUsage:
        num_thought = 0
        if self._reader.thought_end:
            num_thought = self._thought_tokens.count(choice.token_ids, self._reader.thought_end)
        return ResponseUsage.of(usage_of([output], reasoning_tokens=num_thought))

    def _failure(self, detail: ErrorDetail) -> Iterator[Event]:
        yield from self._output.close("incomplete")
        self._response.error = ResponseFailure(
            code="server_error" if detail.type == "server_error" else "invalid_prompt",
            message=detail.message,
        )
        yield ErrorEvent(code=detail.code, message=detail.message, param=detail.param)
        self._response.status = "failed"
        yield self._event("failed", self._written())

    def _add_tokens(
        self, choice: CompletionOutput, logprobs: Sequence[Mapping[int, Logprob]]
    ) -> None:
        """Those that are new."""
        start, num_top = self._cursor.num_tokens, self._generation.sampling.logprobs or 0
        token_ids = choice.token_ids[start:]
        places = self._cursor.offsets.of(map(self._generation.text_bytes(), token_ids))
        entries = chat_entries(token_ids, logprobs[start:], num_top, self._names)
        self._output.add_tokens(places, entries)

    def _written(self) -> bytes:
        """The response as it is so far, as JSON."""
        items = list_json(item.written for item in self._output.ended)
        return object_json(self._response, output=items)

    def _event(self, kind: str, written: bytes) -> Event:
        return ResponseEvent(type=f"response.{kind}", response=written)

    def _sent(self, told: Event) -> bytes:
        told.sequence_number = self._num_events
        self._num_events += 1
        return event(told.written(), told.type)
