"""`/v1/chat/completions`: a conversation in, the assistant's next message out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from pagoda.server.answer import Answer, respond
from pagoda.server.errors import REFUSALS
from pagoda.server.generation import PromptOutput
from pagoda.server.logprobs import chat_logprobs, prompt_logprobs
from pagoda.server.options import ServerOptions
from pagoda.server.protocol import ChatCompletionRequest
from pagoda.server.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatCompletionResponse,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Usage,
)
from pagoda.server.streaming import ChoiceCursor

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


def chat_routes(engine: AsyncEngine, options: ServerOptions) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        response_model=ChatCompletionResponse,
        responses=REFUSALS,
    )
    async def create_chat_completion(request: Request, body: ChatCompletionRequest) -> Response:
        """Answer a conversation."""
        body.check(engine.model_name)
        prompts = [await engine.chat_prompt(body.template_messages())]
        return await respond(ChatAnswer, engine, options, request, body, prompts)

    return router


class ChatAnswer(Answer):
    """Shapes what the engine makes into a `ChatCompletionResponse`, or into its chunks."""

    id_prefix = "chatcmpl"

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatCompletionResponse:
        """All choices, finished; a chat has one prompt."""
        [output] = outputs
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
            **self._stamp,
            choices=choices,
            usage=self.usage_of([output]),
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
        return ChatCompletionChunk(**self._stamp, choices=choices, usage=usage)
