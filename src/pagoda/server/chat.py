"""`/v1/chat/completions`: a conversation in, the assistant's next message out."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from pagoda.server.errors import JSONBody, UnknownModelError
from pagoda.server.generation import Generation, PromptOutput, unless_disconnected, usage_of
from pagoda.server.logprobs import chat_logprobs, prompt_logprobs
from pagoda.server.protocol import ChatCompletionRequest
from pagoda.server.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionResponse,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ErrorResponse,
    Usage,
)
from pagoda.server.streaming import ChoiceCursor, stream

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


def chat_routes(engine: AsyncEngine) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        response_model=ChatCompletionResponse,
        responses={400: {"model": ErrorResponse}, 404: {"model": ErrorResponse}},
    )
    async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
        """Answer a conversation."""
        body.check()
        if body.model not in (None, engine.model_name):
            raise UnknownModelError(str(body.model), engine.model_name)
        generation = Generation(
            engine=engine,
            request_id=f"chatcmpl-{uuid.uuid4().hex}",
            prompts=[await engine.chat_prompt(body.template_messages())],
            sampling=body.sampling(),
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
        )
        answer = ChatAnswer(generation)
        if body.stream:
            return await stream(request, generation, answer, body.include_usage)
        [output] = await unless_disconnected(request, generation.finished())
        return JSONBody(answer.whole(output).model_dump_json())

    return router


class ChatAnswer:
    """Shapes what the engine makes into a `ChatCompletionResponse`, or into its chunks."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._created = int(time.time())
        self._cursors: defaultdict[int, ChoiceCursor] = defaultdict(ChoiceCursor)

    def whole(self, output: RequestOutput) -> ChatCompletionResponse:
        """All choices, finished."""
        choices = [
            ChatChoice(
                index=choice.index,
                message=ChatMessage(content=choice.text),
                logprobs=self._logprobs(choice),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            for choice in output.outputs
        ]
        return ChatCompletionResponse(
            id=self._generation.request_id,
            created=self._created,
            model=self._generation.engine.model_name,
            choices=choices,
            usage=usage_of([output]),
            prompt_logprobs=prompt_logprobs(output.prompt_logprobs),
        )

    def chunks(self, item: PromptOutput) -> Iterator[ChatCompletionChunk]:
        """For each choice: once the role, then what is new."""
        for choice in item.output.outputs:
            if choice.index not in self._cursors:
                opening = ChatDelta(role="assistant", content="")
                yield self._chunk([ChatChunkChoice(index=choice.index, delta=opening)])
            cursor = self._cursors[choice.index]
            if cursor.has_news(choice):
                yield self._chunk([self._news(cursor, choice)])
                cursor.advance(choice)

    def usage_chunk(self, usage: Usage) -> ChatCompletionChunk:
        return self._chunk([], usage)

    def _news(self, cursor: ChoiceCursor, choice: CompletionOutput) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=choice.index,
            delta=ChatDelta(content=cursor.new_text(choice) or None),
            logprobs=self._logprobs(choice, cursor.num_tokens),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )

    def _logprobs(self, choice: CompletionOutput, start: int = 0) -> ChatLogprobs | None:
        if choice.logprobs is None:
            return None
        num_top = self._generation.sampling.logprobs or 0
        return chat_logprobs(choice.token_ids[start:], choice.logprobs[start:], num_top)

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: Usage | None = None
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._generation.request_id,
            created=self._created,
            model=self._generation.engine.model_name,
            choices=choices,
            usage=usage,
        )
