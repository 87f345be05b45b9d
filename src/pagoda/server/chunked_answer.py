"""What the answers of OpenAI's two older APIs have in common: chunks of JSON, then `[DONE]`."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from pagoda.server.answer import Answer
from pagoda.server.generation import Generation, PromptOutput, usage_of
from pagoda.server.logprobs import MANY_LOGPROBS, prompt_logprobs
from pagoda.server.responses import ErrorDetail, ErrorResponse, Usage, json_of
from pagoda.server.streaming import ChoiceCursor, event
from pagoda.server.telling import Telling, cut_short
from pagoda.server.text_chunk import TextChunk, with_usage
from pagoda.server.token_names import TokenNames

if TYPE_CHECKING:
    from pagoda.engine.outputs import RequestOutput

_DONE = event(b"[DONE]")


class ChunkedAnswer(Answer):
    """An answer whose events are chunks of the same shape as the whole."""

    def __init__(self, generation: Generation, telling: Telling) -> None:
        super().__init__(generation)
        self._telling = telling
        self._names = TokenNames(generation.engine.tokenizer.token_bytes, telling.tokens_as_ids)
        self._untold = [each.warning for each in telling.ignored]
        generation.tally.ignored = tuple(dict.fromkeys(each.field for each in telling.ignored))
        self._cursors: defaultdict[int, ChoiceCursor] = defaultdict(
            partial(ChoiceCursor, tells_tokens=telling.token_ids)
        )
        self._stamp: dict[str, Any] = {
            "id": generation.request_id,
            "created": int(time.time()),
            "model": generation.engine.model_name,
        }
        """What every response and chunk carries."""
        self._text_chunks: dict[int, TextChunk] = {}
        """By the index of the choice."""
        self._prompts_told: dict[int, bytes] = {}
        """The log-probabilities of prompts, by the prompt's index."""

    def takes_long(self, item: PromptOutput) -> bool:
        sampling, output = self._generation.sampling, item.output
        of_token = 1 + (sampling.logprobs or 0)
        of_prompt = output.num_prompt_tokens * (1 + (sampling.prompt_logprobs or 0))
        num_new = 0
        for choice in output.outputs:
            index = self._generation.choice_index(item.prompt_index, choice.index)
            cursor = self._cursors.get(index) or ChoiceCursor()
            if choice.logprobs is not None:
                num_new += (len(choice.token_ids) - cursor.num_tokens) * of_token
            if output.prompt_logprobs is not None and not cursor.is_open:
                num_new += of_prompt
        return num_new > MANY_LOGPROBS

    def news(self, item: PromptOutput) -> bytes:
        chunks: Iterable[bytes] = self._chunks(item)
        if self._telling.usage_in_chunks:
            chunks = [*chunks]  # reading them tells what is thought
            usage = json_of(self._usage_so_far([item.output]))
            chunks = (with_usage(chunk, usage) for chunk in chunks)
        return b"".join([event(chunk) for chunk in chunks])

    def end(self, outputs: Sequence[RequestOutput]) -> Iterable[bytes]:
        if not self._telling.usage_at_end:
            return [_DONE]
        return [event(json_of(self._usage_chunk(self._usage_of(outputs)))) + _DONE]

    def failure(self, detail: ErrorDetail) -> bytes:
        return event(json_of(ErrorResponse(error=detail))) + _DONE

    @abstractmethod
    def _chunks(self, item: PromptOutput) -> Iterable[bytes]:
        """What is new in `item`, as JSON."""

    @abstractmethod
    def _usage_chunk(self, usage: Usage) -> BaseModel:
        """The last chunk, without choices."""

    @abstractmethod
    def _plain_chunk(self, index: int, text: str) -> BaseModel:
        """A chunk in which the choice of that index goes on with `text`, and nothing else is."""

    def _text_chunk(self, index: int, text: str) -> bytes:
        """The same as JSON."""
        if index not in self._text_chunks:
            self._text_chunks[index] = TextChunk(partial(self._plain_chunk, index))
        return self._text_chunks[index].saying(text)

    def _prompt_logprobs(self, item: PromptOutput) -> dict[str, bytes]:
        """The field of them, if they were asked for; written once for all choices of a prompt."""
        num_top = self._generation.num_prompt_candidates
        if num_top is None:
            return {}
        if item.prompt_index not in self._prompts_told:
            written = prompt_logprobs(item.output.prompt_logprobs or (), num_top)
            self._prompts_told[item.prompt_index] = written
        return {"prompt_logprobs": self._prompts_told[item.prompt_index]}

    def _warnings(self, *outputs: RequestOutput) -> list[str] | None:
        """Those that were not told yet, with those of outputs that are told now; None: there are
        none."""
        generation, told = self._generation, self._untold
        self._untold = []
        field, max_tokens = generation.options.max_tokens_field, generation.sampling.max_tokens
        for output in outputs:
            told += cut_short(output, field, max_tokens, generation.engine.max_model_len)
        return list(dict.fromkeys(told)) or None

    def _usage_so_far(self, outputs: Sequence[RequestOutput]) -> Usage:
        """Tokens in and out of one output per prompt; none out where only prompts are told."""
        echo = self._generation.echo
        return usage_of(outputs, prompts_alone=echo is not None and echo.alone)

    def _usage_of(self, outputs: Sequence[RequestOutput]) -> Usage:
        """Of all prompts, with what is told once."""
        usage = self._usage_so_far(outputs)
        if self._telling.cache_explanation:
            usage.cache_explanation = self._generation.explained(outputs)
        return usage
