"""`/v1/chat/completions`: a conversation in, the assistant's next message out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from pagoda.server.answer import new_id, respond
from pagoda.server.body_route import BodyRoute
from pagoda.server.chat_request import ChatCompletionRequest
from pagoda.server.chunked_answer import ChunkedAnswer
from pagoda.server.errors import REFUSALS
from pagoda.server.generation import Generation, PromptOutput, usage_of
from pagoda.server.json_parts import list_json, object_json
from pagoda.server.logprobs import chat_logprobs
from pagoda.server.options import ServerOptions
from pagoda.server.prompts import Prompts
from pagoda.server.reading import CallPiece, Reading, ToolCall, calls_in
from pagoda.server.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionResponse,
    ChatDelta,
    ChatMessage,
    FunctionCall,
    FunctionDelta,
    ToolCallDelta,
    ToolCallMessage,
    Usage,
    json_of,
)
from pagoda.server.streaming import ChoiceCursor
from pagoda.server.telling import Telling
from pagoda.server.text_chunk import TextChunk
from pagoda.server.thinking import Thinking
from pagoda.server.thought_tokens import ThoughtTokens
from pagoda.server.tool_calls import AnswerReader, new_call_id

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


def chat_routes(engine: AsyncEngine, options: ServerOptions, prompts: Prompts) -> APIRouter:
    router = APIRouter(route_class=BodyRoute)
    thinking = Thinking(engine, options.reasoning_parser)

    @router.post(
        "/v1/chat/completions",
        response_model=ChatCompletionResponse,
        responses=REFUSALS,
    )
    async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
        """Answer a conversation."""
        body.check(engine.model_names)
        asked = await prompts.of_chat(request, body)
        unread = body.unread(engine.tokenizer.template_names)
        telling = body.telling()
        telling = replace(telling, ignored=[*telling.ignored, *unread])
        begin = partial(ChatAnswer, telling=telling, beginning=body.echoed())
        return await respond(
            begin,
            new_id("chatcmpl"),
            engine,
            options,
            request,
            body,
            asked,
            tools=body.tool_use.reader(engine),
            thinking=thinking,
        )

    return router


class ChatAnswer(ChunkedAnswer):
    """Shapes what the engine makes into a `ChatCompletionResponse`, or into its chunks."""

    def __init__(self, generation: Generation, telling: Telling, beginning: str = "") -> None:
        """`beginning` is a text that the answer goes on with, and is told before it."""
        super().__init__(generation, telling)
        self._beginning = beginning
        self._readers: dict[int, AnswerReader] = {}
        """By the index of the choice that each of them reads."""
        self._thought_chunks: dict[int, TextChunk] = {}
        self._thought_tokens: defaultdict[int, ThoughtTokens] = defaultdict(
            partial(ThoughtTokens, generation.text_bytes())
        )

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """A chat has one prompt."""
        [output] = outputs
        choices = list_json([self._choice(choice) for choice in output.outputs])
        usage = self._usage_of([output])
        of_prompt = self._prompt_logprobs(PromptOutput(0, output))
        answer = ChatCompletionResponse(
            **self._stamp,
            choices=[],
            usage=usage,
            prompt_token_ids=self._prompt_ids(output),
            warnings=self._warnings(output),
        )
        return object_json(answer, choices=choices, usage=json_of(usage), **of_prompt)

    def _chunks(self, item: PromptOutput) -> Iterator[bytes]:
        """For each choice: once the role, then what is new."""
        for choice in item.output.outputs:
            if choice.index not in self._cursors:
                yield self._opening(choice, item)
            cursor = self._cursors[choice.index]
            if cursor.finished:
                continue
            news = self._read(choice, cursor.new_text(choice))
            thought = self._thought(news)
            is_text = not news.calls and cursor.has_text_alone(choice)
            if is_text and news.content and not thought:
                yield self._text_chunk(choice.index, news.content)
            elif is_text and thought and not news.content:
                yield self._thought_chunk(choice.index, thought)
            elif news.content or thought or news.calls or cursor.has_news_beside_text(choice):
                choices = list_json([self._news(cursor, choice, news)])
                yield object_json(self._chunk([]), choices=choices)
            cursor.advance(choice)
            cursor.has_calls |= bool(news.calls)

    def _opening(self, choice: CompletionOutput, item: PromptOutput) -> bytes:
        """The first of all says what an answer says once."""
        delta = ChatDelta(role="assistant", content=self._beginning)
        chunk = ChatCompletionChunk(
            **self._stamp,
            choices=[ChatChunkChoice(index=choice.index, delta=delta)],
            prompt_token_ids=self._prompt_ids(item.output),
            warnings=self._warnings(item.output),
        )
        return object_json(chunk, **({} if self._cursors else self._prompt_logprobs(item)))

    def _prompt_ids(self, output: RequestOutput) -> list[int] | None:
        return output.prompt_token_ids if self._telling.token_ids else None

    def _token_ids(self, choice: CompletionOutput, start: int = 0) -> list[int] | None:
        return list(choice.token_ids[start:]) if self._telling.token_ids else None

    def _usage_chunk(self, usage: Usage) -> ChatCompletionChunk:
        return self._chunk([], usage)

    def _plain_chunk(self, index: int, text: str) -> ChatCompletionChunk:
        return self._chunk([ChatChunkChoice(index=index, delta=ChatDelta(content=text))])

    def _thought_chunk(self, index: int, text: str) -> bytes:
        """A chunk in which that choice goes on with a thought, and nothing else is."""
        if index not in self._thought_chunks:
            self._thought_chunks[index] = TextChunk(partial(self._plain_thought, index), 2)
        return self._thought_chunks[index].saying(text)

    def _plain_thought(self, index: int, text: str) -> ChatCompletionChunk:
        delta = ChatDelta(reasoning_content=text, reasoning=text)
        return self._chunk([ChatChunkChoice(index=index, delta=delta)])

    def _read(self, choice: CompletionOutput, text: str) -> Reading:
        """The end of `choice` that is new, apart: thoughts, what is said, and calls of tools."""
        if choice.index not in self._readers:
            self._readers[choice.index] = self._generation.tools.begin()
        reader = self._readers[choice.index]
        reading = reader.feed(text, finished=choice.finished)
        if self._generation.tools.knows_thoughts:
            self._thought_tokens[choice.index].count(choice.token_ids, reader.thought_end)
        return reading

    def _thought(self, reading: Reading) -> str | None:
        """What is told of it."""
        return (reading.thought or None) if self._telling.thoughts else None

    def _usage_so_far(self, outputs: Sequence[RequestOutput]) -> Usage:
        if not self._generation.tools.knows_thoughts:
            return super()._usage_so_far(outputs)
        num_thought = sum(each.num for each in self._thought_tokens.values())
        return usage_of(outputs, reasoning_tokens=num_thought)

    def _choice(self, choice: CompletionOutput) -> bytes:
        reading = self._read(choice, choice.text)
        calls = calls_in(reading.calls)
        made = [ToolCallMessage(id=new_call_id(), function=_function(call)) for call in calls]
        content, thought = self._beginning + reading.content, reading.thought
        told = self._thought(reading)
        said = ChatChoice(
            index=choice.index,
            message=ChatMessage(
                content=(content or None) if made or thought else content,
                tool_calls=made or None,
                reasoning_content=told,
                reasoning=told,
            ),
            finish_reason=self._finish_reason(choice, bool(made)),
            stop_reason=choice.stop_reason,
            token_ids=self._token_ids(choice),
        )
        return object_json(said, **self._logprobs(choice))

    def _news(self, cursor: ChoiceCursor, choice: CompletionOutput, news: Reading) -> bytes:
        made, thought = [_delta(piece) for piece in news.calls], self._thought(news)
        said = ChatChunkChoice(
            index=choice.index,
            delta=ChatDelta(
                content=news.content or None,
                tool_calls=made or None,
                reasoning_content=thought,
                reasoning=thought,
            ),
            finish_reason=self._finish_reason(choice, bool(made) or cursor.has_calls),
            stop_reason=choice.stop_reason,
            token_ids=self._token_ids(choice, cursor.num_tokens),
        )
        return object_json(said, **self._logprobs(choice, cursor.num_tokens))

    def _finish_reason(self, choice: CompletionOutput, has_calls: bool) -> str | None:
        if has_calls and choice.finish_reason == "stop":
            return self._generation.tools.finish_reason
        return choice.finish_reason

    def _logprobs(self, choice: CompletionOutput, start: int = 0) -> dict[str, bytes]:
        """The field of a choice that has them."""
        if choice.logprobs is None:
            return {}
        num_top = self._generation.sampling.logprobs or 0
        token_ids, logprobs = choice.token_ids[start:], choice.logprobs[start:]
        return {"logprobs": chat_logprobs(token_ids, logprobs, num_top, self._names)}

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: Usage | None = None
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._stamp, choices=choices, usage=usage)


def _function(call: ToolCall) -> FunctionCall:
    return FunctionCall(name=call.name, arguments=call.arguments)


def _delta(piece: CallPiece) -> ToolCallDelta:
    function = FunctionDelta(name=piece.name, arguments=piece.arguments)
    if piece.name is None:
        return ToolCallDelta(index=piece.index, function=function)
    return ToolCallDelta(index=piece.index, id=new_call_id(), type="function", function=function)
