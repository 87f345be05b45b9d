"""`/v1/completions`: text or token ids in, their continuation out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from pagoda.server.answer import new_id, respond
from pagoda.server.chunked_answer import ChunkedAnswer
from pagoda.server.errors import REFUSALS
from pagoda.server.generation import Echo, PromptOutput
from pagoda.server.logprobs import (
    completion_logprobs,
    echoed_logprobs,
    joined,
    prompt_logprobs,
)
from pagoda.server.options import ServerOptions
from pagoda.server.protocol import CompletionRequest
from pagoda.server.responses import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
    Usage,
    json_of,
)
from pagoda.server.streaming import ChoiceCursor
from pagoda.server.text_offsets import TextOffsets

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import CompletionOutput, Logprob, RequestOutput


def completion_routes(engine: AsyncEngine, options: ServerOptions) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions",
        response_model=CompletionResponse,
        responses=REFUSALS,
    )
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Continue one or several prompts."""
        body.check(engine.model_names)
        prompts = body.prompts()
        echo = None
        if body.echo:
            texts = [
                each if isinstance(each, str) else await engine.tokenizer.decode(each, "prompt")
                for each in prompts
            ]
            echo = Echo(texts, body.wants_prompt_alone)
        begin = partial(CompletionAnswer, telling=body.telling())
        answer_id = new_id("cmpl")
        return await respond(begin, answer_id, engine, options, request, body, prompts, echo)

    return router


class CompletionAnswer(ChunkedAnswer):
    """Shapes what the engine makes into `CompletionResponse`s, whole or in chunks."""

    def whole(self, outputs: Sequence[RequestOutput]) -> CompletionResponse:
        """All choices of all prompts, finished."""
        choices = [
            self._choice(PromptOutput(index, output), choice)
            for index, output in enumerate(outputs)
            for choice in output.outputs
        ]
        return self._response(choices, self._usage_of(outputs), self._warnings(*outputs))

    def _chunks(self, item: PromptOutput) -> Iterator[bytes]:
        """One chunk for each choice that has something new."""
        for choice in item.output.outputs:
            index = self._index(item, choice)
            cursor = self._cursors[index]
            if cursor.has_news(choice):
                if cursor.has_text_alone(choice):
                    yield self._text_chunk(index, cursor.new_text(choice))
                else:
                    warnings = None if cursor.is_open else self._warnings(item.output)
                    made = self._choice(item, choice)
                    yield json_of(self._response([made], warnings=warnings))
                cursor.advance(choice)

    def _plain_chunk(self, index: int, text: str) -> CompletionResponse:
        return self._response([CompletionChoice(index=index, text=text)])

    def _usage_chunk(self, usage: Usage) -> CompletionResponse:
        return self._response([], usage)

    def _choice(self, item: PromptOutput, choice: CompletionOutput) -> CompletionChoice:
        """What of `choice` has not been sent; the prompt goes first, where it is echoed."""
        index = self._index(item, choice)
        cursor = self._cursors[index]
        echo, is_first = self._generation.echo, not cursor.is_open
        tells_ids = self._telling.token_ids
        text, logprobs, candidates = "", None, item.output.prompt_logprobs
        if echo is not None and is_first:
            text = echo.texts[item.prompt_index]
            if candidates is not None:
                logprobs = self._echoed(text, item.output.prompt_token_ids, candidates)
                cursor.offsets = TextOffsets(len(text))
        if echo is None or not echo.alone:
            text += cursor.new_text(choice)
            logprobs = joined(logprobs, self._new_logprobs(cursor, choice))
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            prompt_logprobs=prompt_logprobs(candidates) if echo is None and is_first else None,
            token_ids=choice.token_ids[cursor.num_tokens :] if tells_ids else None,
            prompt_token_ids=item.output.prompt_token_ids if tells_ids and is_first else None,
        )

    def _echoed(
        self,
        text: str,
        token_ids: Sequence[int],
        candidates: Sequence[Mapping[int, Logprob] | None],
    ) -> CompletionLogprobs:
        """The tokens of a prompt whose text is echoed; none begins behind its end."""
        tokenizer = self._generation.engine.tokenizer
        first_text = tokenizer.token_text(token_ids[0])
        places = TextOffsets().of(map(tokenizer.token_bytes, token_ids))
        offsets = [min(place, len(text)) for place in places]
        as_ids = self._telling.tokens_as_ids
        return echoed_logprobs(first_text, token_ids, candidates, offsets, as_ids=as_ids)

    def _new_logprobs(
        self, cursor: ChoiceCursor, choice: CompletionOutput
    ) -> CompletionLogprobs | None:
        if choice.logprobs is None:
            return None
        token_ids = choice.token_ids[cursor.num_tokens :]
        token_bytes = self._generation.engine.tokenizer.token_bytes
        return completion_logprobs(
            token_ids,
            choice.logprobs[cursor.num_tokens :],
            cursor.offsets.of(map(token_bytes, token_ids)),
            as_ids=self._telling.tokens_as_ids,
        )

    def _index(self, item: PromptOutput, choice: CompletionOutput) -> int:
        return self._generation.choice_index(item.prompt_index, choice.index)

    def _response(
        self,
        choices: list[CompletionChoice],
        usage: Usage | None = None,
        warnings: list[str] | None = None,
    ) -> CompletionResponse:
        return CompletionResponse(**self._stamp, choices=choices, usage=usage, warnings=warnings)
