"""`/v1/completions`: text or token ids in, their continuation out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from pagoda.server.answer import new_id, respond
from pagoda.server.chunked_answer import ChunkedAnswer
from pagoda.server.errors import REFUSALS
from pagoda.server.generation import Echo, Generation, PromptOutput
from pagoda.server.json_parts import list_json, object_json
from pagoda.server.logprobs import (
    WrittenLogprobs,
    completion_logprobs,
    echoed_logprobs,
)
from pagoda.server.options import ServerOptions
from pagoda.server.protocol import CompletionRequest
from pagoda.server.responses import (
    CompletionChoice,
    CompletionResponse,
    Usage,
    json_of,
)
from pagoda.server.streaming import ChoiceCursor

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.outputs import CompletionOutput, RequestOutput


def completion_routes(engine: AsyncEngine, options: ServerOptions) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions",
        response_model=CompletionResponse,
        responses=REFUSALS,
    )
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """Continue one or several prompts."""
        body.check(engine.model_name)
        prompts = body.prompts()
        echo = None
        if body.echo:
            texts = [
                each if isinstance(each, str) else await engine.tokenizer.decode(each, "prompt")
                for each in prompts
            ]
            echo = Echo(texts, body.wants_prompt_alone)
        begin = partial(CompletionAnswer, include_usage=body.include_usage)
        answer_id = new_id("cmpl")
        return await respond(begin, answer_id, engine, options, request, body, prompts, echo)

    return router


class CompletionAnswer(ChunkedAnswer):
    """Shapes what the engine makes into `CompletionResponse`s, whole or in chunks."""

    def __init__(self, generation: Generation, *, include_usage: bool) -> None:
        super().__init__(generation, include_usage=include_usage)
        self._echoes: dict[int, WrittenLogprobs] = {}
        """The log-probabilities of echoed prompts, by the prompt's index."""

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        choices = (
            self._choice(PromptOutput(index, output), choice)
            for index, output in enumerate(outputs)
            for choice in output.outputs
        )
        usage = json_of(self._usage_of(outputs))
        return object_json(self._response([]), choices=list_json(choices), usage=usage)

    def _chunks(self, item: PromptOutput) -> Iterator[bytes]:
        """One chunk for each choice that has something new."""
        for choice in item.output.outputs:
            index = self._index(item, choice)
            cursor = self._cursors[index]
            if cursor.has_news(choice):
                if cursor.has_text_alone(choice):
                    yield self._text_chunk(index, cursor.new_text(choice))
                else:
                    choices = list_json([self._choice(item, choice)])
                    yield object_json(self._response([]), choices=choices)
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
        fields: dict[str, bytes] = {}
        told: list[WrittenLogprobs] = []
        text = ""
        if is_first and echo is not None:
            text = echo.texts[item.prompt_index]
            if item.output.prompt_logprobs is not None:
                told.append(self._echo(item))
                cursor.num_token_characters = len(text)
        elif is_first and item.output.prompt_logprobs is not None:
            fields["prompt_logprobs"] = self._prompt_logprobs(item)
        if echo is None or not echo.alone:
            text += cursor.new_text(choice)
            if choice.logprobs is not None:
                told.append(_new_logprobs(cursor, choice))
        if told:
            fields["logprobs"] = reduce(WrittenLogprobs.then, told).json()
        said = CompletionChoice(
            index=index,
            text=text,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
        return object_json(said, **fields)

    def _echo(self, item: PromptOutput) -> WrittenLogprobs:
        """Of an echoed prompt, written once for all of its choices."""
        if item.prompt_index not in self._echoes:
            token_ids = item.output.prompt_token_ids
            first_text = self._generation.engine.tokenizer.token_text(token_ids[0])
            candidates = item.output.prompt_logprobs or ()
            self._echoes[item.prompt_index] = echoed_logprobs(first_text, token_ids, candidates)
        return self._echoes[item.prompt_index]

    def _index(self, item: PromptOutput, choice: CompletionOutput) -> int:
        return self._generation.choice_index(item.prompt_index, choice.index)

    def _response(
        self, choices: list[CompletionChoice], usage: Usage | None = None
    ) -> CompletionResponse:
        return CompletionResponse(**self._stamp, choices=choices, usage=usage)


def _new_logprobs(cursor: ChoiceCursor, choice: CompletionOutput) -> WrittenLogprobs:
    start, logprobs = cursor.num_tokens, choice.logprobs or []
    shaped = completion_logprobs(
        choice.token_ids[start:], logprobs[start:], cursor.num_token_characters
    )
    if shaped.tokens:
        cursor.num_token_characters = shaped.text_offset[-1] + len(shaped.tokens[-1])
    return WrittenLogprobs.of(shaped)
