"""Puts a request's output together, token by token, as its caller sees it."""

from __future__ import annotations

from pagoda.engine.detokenizer import Detokenizer
from pagoda.engine.outputs import CompletionOutput, Logprob, RequestOutput
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.vocabulary import Vocabulary
from pagoda.request import Request
from pagoda.scheduling import FinishReason, Sequence


class Choice:
    """The visible output of one sequence.

    Text is made when somebody looks: at a stop string after every token, otherwise at an output.
    """

    def __init__(self, sequence: Sequence, vocabulary: Vocabulary) -> None:
        self.sequence = sequence
        self.sampling_row = SamplingRow.of(sequence)
        self._params = sequence.request.sampling
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary, self._params, sequence.request.prompt_token_ids)
        self._num_read = 0
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative_logprob = 0.0

    def note(self, logprobs: dict[int, Logprob], token_id: int) -> None:
        """Log-probabilities at the place of `token_id`, which the sequence has just been given."""
        self._logprobs.append(with_text(logprobs, self._vocabulary))
        self._cumulative_logprob += logprobs[token_id].logprob

    def follow_grammar(self) -> None:
        """Work out which tokens may come next. Raises `MatchError` where that takes too much."""
        if self.sampling_row.matcher is not None:
            self.sampling_row.matcher.follow(self.sequence.output_token_ids)

    def find_stop_string(self) -> str | None:
        """The stop string that has come up, if one has."""
        if self._params.stop:
            self._read()
        return self._detokenizer.stop

    def output(self) -> CompletionOutput:
        """Everything so far; `delta` is what is new since the last call."""
        self._read()
        if self.sequence.finish_reason is not None:
            self._detokenizer.flush()
        wants_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=self.sequence.index,
            text=self._detokenizer.text,
            token_ids=self.sequence.output_token_ids[:],
            cumulative_logprob=self._cumulative_logprob if wants_logprobs else None,
            logprobs=self._logprobs[:] if wants_logprobs else None,
            finish_reason=self._finish_reason(),
            stop_reason=self._detokenizer.stop or self.sequence.stop_reason,
            delta=self._detokenizer.take_delta(),
        )

    def _read(self) -> None:
        """Turn the tokens that are new into text."""
        token_ids = self.sequence.output_token_ids
        end = len(token_ids) if self._shows_last() else len(token_ids) - 1
        if end > self._num_read:
            self._detokenizer.append(token_ids[self._num_read : end], end)
            self._num_read = end

    def _shows_last(self) -> bool:
        """A token that ended the output is not part of its text, unless that was asked for."""
        return self.sequence.finish_reason != "stop" or self._params.include_stop_str_in_output

    def _finish_reason(self) -> FinishReason | None:
        # A stop string in the very token that reached the length is still a stop.
        return "stop" if self._detokenizer.stop is not None else self.sequence.finish_reason


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
        self._request = request
        self._prompt = prompt
        self._prompt_token_ids = list(request.prompt_token_ids)
        self._prompt_logprobs: dict[int, dict[int, Logprob]] = {}
        self._vocabulary = vocabulary
        self._streams = streams
        self.choices = [Choice(sequence, vocabulary) for sequence in sequences]

    @property
    def is_finished(self) -> bool:
        return all(choice.sequence.finish_reason is not None for choice in self.choices)

    def is_due_after(self, sequence: Sequence) -> bool:
        """Somebody waits for the output, now that one of its sequences has got further."""
        return self._streams or (sequence.finish_reason is not None and self.is_finished)

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
