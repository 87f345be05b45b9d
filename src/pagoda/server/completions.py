"""`/v1/completions`: text or token ids in, their continuation out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from pagoda.server.answer import new_id, respond
from pagoda.server.body_route import BodyRoute
from pagoda.server.chunked_answer import ChunkedAnswer
from pagoda.server.completion_request import CompletionRequest
from pagoda.server.door import tenant_of
from pagoda.server.errors import REFUSALS
from pagoda.server.generation import Echo, Generation, PromptOutput
from pagoda.server.json_parts import list_json, object_json
from pagoda.server.logprobs import (
    WrittenLogprobs,
    completion_logprobs,
    echoed_logprobs,
    likeliest,
)
from pagoda.server.options import ServerOptions
from pagoda.server.prompts import Prompts
from pagoda.server.responses import (
    CompletionChoice,
    CompletionResponse,
    Usage,
    json_of,
)
from pagoda.server.streaming import ChoiceCursor
from pagoda.server.telling import Telling
from pagoda.server.text_offsets import TextOffsets, offsets_in

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


def completion_routes(engine: AsyncEngine, options: ServerOptions, prompts: Prompts) -> APIRouter:
    router = APIRouter(route_class=BodyRoute)

    @router.post(
        "/v1/completions",
        response_model=CompletionResponse,
        responses=REFUSALS,
    )
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Continue one or several prompts."""
        body.check(engine.model_names)
        tenant, tokenizer = tenant_of(request.scope), engine.tokenizer
        asked = await prompts.of_completion(request, body)
        echo = None
        if body.echo:
            texts = [
                each
                if isinstance(each, str)
                else await tokenizer.decode(each, "prompt", tenant=tenant)
                for each in asked
            ]
            echo = Echo(texts, body.wants_prompt_alone, body.prompt_logprobs)
        begin = partial(CompletionAnswer, telling=body.telling())
        answer_id = new_id("cmpl")
        return await respond(begin, answer_id, engine, options, request, body, asked, echo)

    return router


class CompletionAnswer(ChunkedAnswer):
    """Shapes what the engine makes into `CompletionResponse`s, whole or in chunks."""

    def __init__(self, generation: Generation, telling: Telling) -> None:
        super().__init__(generation, telling)
        self._echoes: dict[int, WrittenLogprobs] = {}
        """The log-probabilities of echoed prompts, by the prompt's index."""

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        choices = (
            self._choice(PromptOutput(index, output), choice)
            for index, output in enumerate(outputs)
            for choice in output.outputs
        )
        usage = json_of(self._usage_of(outputs))
        response = self._response([], warnings=self._warnings(*outputs))
        return object_json(response, choices=list_json(choices), usage=usage)

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
                    choices = list_json([self._choice(item, choice)])
                    yield object_json(self._response([], warnings=warnings), choices=choices)
                cursor.advance(choice)

    def _plain_chunk(self, index: int, text: str) -> CompletionResponse:
        return self._response([CompletionChoice(index=index, text=text)])

    def _usage_chunk(self, usage: Usage) -> CompletionResponse:
        return self._response([], usage)

    def _choice(self, item: PromptOutput, choice: CompletionOutput) -> bytes:
        """What of `choice` has not been sent; the prompt goes first, where it is echoed."""
        index = self._index(item, choice)
        cursor = self._cursors[index]
        echo, is_first = self._generation.echo, not cursor.is_open
        tells_ids = self._telling.token_ids
        fields = self._prompt_logprobs(item) if is_first else {}
        told: list[WrittenLogprobs] = []
        text = ""
        if is_first and echo is not None:
            text = echo.texts[item.prompt_index]
            if self._generation.sampling.logprobs is not None:
                told.append(self._echo(item, text))
                cursor.offsets = TextOffsets(len(text))
        if echo is None or not echo.alone:
            text += cursor.new_text(choice)
            if choice.logprobs is not None:
                told.append(self._new_logprobs(cursor, choice))
        if told:
            fields["logprobs"] = reduce(WrittenLogprobs.then, told).json()
        said = CompletionChoice(
            index=index,
            text=text,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            token_ids=list(choice.token_ids[cursor.num_tokens :]) if tells_ids else None,
            prompt_token_ids=item.output.prompt_token_ids if tells_ids and is_first else None,
        )
        return object_json(said, **fields)

    def _echo(self, item: PromptOutput, text: str) -> WrittenLogprobs:
        """Of an echoed prompt, written once for all of its choices; no token begins behind it."""
        if item.prompt_index not in self._echoes:
            tokenizer, token_ids = self._generation.engine.tokenizer, item.output.prompt_token_ids
            num_top = self._generation.sampling.logprobs or 0
            self._echoes[item.prompt_index] = echoed_logprobs(
                token_ids,
                [likeliest(each or {}, num_top) for each in item.output.prompt_logprobs or ()],
                offsets_in(text, token_ids, tokenizer.token_bytes, tokenizer.special_ids),
                self._names,
            )
        return self._echoes[item.prompt_index]

    def _new_logprobs(self, cursor: ChoiceCursor, choice: CompletionOutput) -> WrittenLogprobs:
        start, logprobs = cursor.num_tokens, choice.logprobs or []
        token_ids = choice.token_ids[start:]
        shaped = completion_logprobs(
            token_ids,
            logprobs[start:],
            cursor.offsets.of(map(self._generation.text_bytes(), token_ids)),
            self._names,
        )
        return WrittenLogprobs.of(shaped)

    def _index(self, item: PromptOutput, choice: CompletionOutput) -> int:
        return self._generation.choice_index(item.prompt_index, choice.index)

    def _response(
        self,
        choices: list[CompletionChoice],
        usage: Usage | None = None,
        warnings: list[str] | None = None,
    ) -> CompletionResponse:
        return CompletionResponse(**self._stamp, choices=choices, usage=usage, warnings=warnings)
