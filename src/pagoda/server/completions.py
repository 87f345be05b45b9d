"""`/v1/completions`: text or token ids in, their continuation out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from pagoda.server.answer import Answer, respond
from pagoda.server.generation import PromptOutput, usage_of
from pagoda.server.logprobs import completion_logprobs, prompt_logprobs
from pagoda.server.protocol import CompletionRequest
from pagoda.server.responses import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
    ErrorResponse,
    Usage,
)
from pagoda.server.streaming import ChoiceCursor

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


def completion_routes(engine: AsyncEngine) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions",
        response_model=CompletionResponse,
        responses={400: {"model": ErrorResponse}, 404: {"model": ErrorResponse}},
    )
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Continue one or several prompts."""
        body.check(engine.model_name)
        return await respond(CompletionAnswer, engine, request, body, body.prompts())

    return router


class CompletionAnswer(Answer):
    """Shapes what the engine makes into `CompletionResponse`s, whole or in chunks."""

    id_prefix = "cmpl"

    def whole(self, outputs: Sequence[RequestOutput]) -> CompletionResponse:
        """All choices of all prompts, finished."""
        choices = [
            self._choice(PromptOutput(index, output), choice)
            for index, output in enumerate(outputs)
            for choice in output.outputs
        ]
        return self._response(choices, usage_of(outputs))

    def chunks(self, item: PromptOutput) -> Iterator[CompletionResponse]:
        """One chunk for each choice that has something new."""
        for choice in item.output.outputs:
            cursor = self._cursors[self._index(item, choice)]
            if cursor.has_news(choice):
                yield self._response([self._choice(item, choice)])
                cursor.advance(choice)

    def usage_chunk(self, usage: Usage) -> CompletionResponse:
        return self._response([], usage)

    def _choice(self, item: PromptOutput, choice: CompletionOutput) -> CompletionChoice:
        """What of `choice` has not been sent."""
        index = self._index(item, choice)
        cursor = self._cursors[index]
        first = cursor.num_tokens == 0
        return CompletionChoice(
            index=index,
            text=cursor.new_text(choice),
            logprobs=_new_logprobs(cursor, choice),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            prompt_logprobs=prompt_logprobs(item.output.prompt_logprobs) if first else None,
        )

    def _index(self, item: PromptOutput, choice: CompletionOutput) -> int:
        return self._generation.choice_index(item.prompt_index, choice.index)

    def _response(
        self, choices: list[CompletionChoice], usage: Usage | None = None
    ) -> CompletionResponse:
        return CompletionResponse(**self._stamp, choices=choices, usage=usage)


def _new_logprobs(cursor: ChoiceCursor, choice: CompletionOutput) -> CompletionLogprobs | None:
    if choice.logprobs is None:
        return None
    start = cursor.num_tokens
    shaped = completion_logprobs(
        choice.token_ids[start:], choice.logprobs[start:], cursor.num_token_characters
    )
    if shaped.tokens:
        cursor.num_token_characters = shaped.text_offset[-1] + len(shaped.tokens[-1])
    return shaped
