"""Puts a request's output together, token by token, as its caller sees it."""

from __future__ import annotations

from pagoda.engine.detokenizer import Detokenizer
from pagoda.engine.outputs import CompletionOutput, Logprob, RequestOutput
from pagoda.engine.sampler import SampledToken
from pagoda.engine.vocabulary import Vocabulary
from pagoda.request import Request
from pagoda.scheduling import FinishReason, Sequence


class Choice:
    """The visible output of one sequence."""

    def __init__(self, sequence: Sequence, vocabulary: Vocabulary) -> None:
        self.sequence = sequence
        self._params = sequence.request.sampling
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary, self._params, sequence.request.prompt_token_ids)
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative_logprob = 0.0

    @property
    def is_finished(self) -> bool:
        return self.sequence.finish_reason is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that has come up, if one has."""
        return self._detokenizer.stop

    def add(self, token: SampledToken) -> None:
        """Take in the token that the sequence has just been given."""
        if token.logprobs is not None:
            self._logprobs.append(with_text(token.logprobs, self._vocabulary))
            self._cumulative_logprob += token.logprobs[token.token_id].logprob
        if self._is_shown():
            self._detokenizer.append([token.token_id], self.sequence.num_output_tokens)

    def end(self) -> None:
        """Nothing more will come: show what was held back."""
        self._detokenizer.flush()

    def output(self) -> CompletionOutput:
        """Everything so far; `delta` is what is new since the last call."""
        wants_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=self.sequence.index,
            text=self._detokenizer.text,
            token_ids=self.sequence.output_token_ids,
            cumulative_logprob=self._cumulative_logprob if wants_logprobs else None,
            logprobs=self._logprobs[:] if wants_logprobs else None,
            finish_reason=self._finish_reason(),
            stop_reason=self.stop_string or self.sequence.stop_reason,
            delta=self._detokenizer.take_delta(),
        )

    def _is_shown(self) -> bool:
        """A token that ended the output is not part of its text, unless that was asked for."""
        return self.sequence.finish_reason != "stop" or self._params.include_stop_str_in_output

    def _finish_reason(self) -> FinishReason | None:
        # A stop string in the very token that reached the length is still a stop.
        return "stop" if self.stop_string is not None else self.sequence.finish_reason


class Assembler:
    """The visible output of one request."""

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        sequences: tuple[Sequence, ...],
        vocabulary: Vocabulary,
    ) -> None:
        self._request = request
        self._prompt = prompt
        self._prompt_token_ids = list(request.prompt_token_ids)
        self._prompt_logprobs: dict[int, dict[int, Logprob]] = {}
        self._vocabulary = vocabulary
        self.choices = [Choice(sequence, vocabulary) for sequence in sequences]

    @property
    def is_finished(self) -> bool:
        return all(choice.is_finished for choice in self.choices)

    def add_prompt_logprobs(self, start: int, logprobs: list[dict[int, Logprob]]) -> None:
        """Log-probabilities of the prompt's tokens from position `start` on."""
        for position, entry in enumerate(logprobs, start):
            self._prompt_logprobs[position] = with_text(entry, self._vocabulary)

    def output(self) -> RequestOutput:
        """Everything so far."""
        return RequestOutput(
            request_id=self._request.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            prompt_logprobs=self._all_prompt_logprobs(),
            outputs=[choice.output() for choice in self.choices],
            finished=self.is_finished,
            num_cached_tokens=self.choices[0].sequence.num_cached_tokens,
        )

    def _all_prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        if self._request.sampling.prompt_logprobs is None:
            return None
        positions = range(len(self._request.prompt_token_ids))
        return [self._prompt_logprobs.get(position) for position in positions]


def with_text(logprobs: dict[int, Logprob], vocabulary: Vocabulary) -> dict[int, Logprob]:
    """The same entries with each token's text filled in."""
    return {
        token_id: Logprob(entry.logprob, entry.rank, vocabulary.token_text(token_id))
        for token_id, entry in logprobs.items()
    }
