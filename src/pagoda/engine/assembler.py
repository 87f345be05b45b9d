"""Puts a request's output together, from those of its choices."""

from __future__ import annotations

from pagoda.engine.choice import Choice, with_text
from pagoda.engine.outputs import Logprob, RequestOutput
from pagoda.engine.stop_strings import StopString
from pagoda.engine.vocabulary import Vocabulary
from pagoda.request import Request
from pagoda.scheduling import Sequence


class Assembler:
    """The visible output of one request."""

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        sequences: tuple[Sequence, ...],
        vocabulary: Vocabulary,
        streams: bool,
    ) -> None:
        self.request = request
        self._prompt = prompt
        self._prompt_token_ids = list(request.prompt_token_ids)
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if request.sampling.prompt_logprobs is not None:
            self._prompt_logprobs = [None] * len(request.prompt_token_ids)
        self._vocabulary = vocabulary
        self._streams = streams
        stops = tuple(map(StopString, request.sampling.stop))
        self.choices = [Choice(sequence, vocabulary, stops) for sequence in sequences]

    @property
    def is_finished(self) -> bool:
        return all(choice.sequence.ending is not None for choice in self.choices)

    def is_due_after(self, sequence: Sequence) -> bool:
        """Somebody waits for the output, now that one of its sequences has got further."""
        return self._streams or (sequence.ending is not None and self.is_finished)

    def add_prompt_logprobs(self, start: int, logprobs: list[dict[int, Logprob]]) -> None:
        """Log-probabilities of the prompt's tokens from position `start` on."""
        assert self._prompt_logprobs is not None, "nobody asked for them"
        for position, entry in enumerate(logprobs, start):
            self._prompt_logprobs[position] = with_text(entry, self._vocabulary)

    def output(self) -> RequestOutput:
        """Everything so far."""
        first = self.choices[0].sequence
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs,
            outputs=[choice.output() for choice in self.choices],
            finished=self.is_finished,
            num_cached_tokens=first.num_cached_tokens,
            cache_miss=None if first.lookup is None else first.lookup.miss,
        )
