"""The visible output of one sequence, token by token."""

from __future__ import annotations

from pagoda.engine.detokenizer import Detokenizer
from pagoda.engine.grammar import Matcher
from pagoda.engine.outputs import CompletionOutput, Logprob
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.so_far import SoFar
from pagoda.engine.stop_strings import StopString
from pagoda.engine.vocabulary import Vocabulary
from pagoda.scheduling import Ending, Sequence


class Choice:
    """The visible output of one sequence.

    Text is made when somebody looks: at a stop string after every token, otherwise at an output.
    """

    def __init__(
        self, sequence: Sequence, vocabulary: Vocabulary, stops: tuple[StopString, ...]
    ) -> None:
        self.sequence = sequence
        self.sampling_row = SamplingRow.of(sequence)
        self._params = sequence.request.sampling
        self.has_stop_strings = bool(self._params.stop)
        self._vocabulary = vocabulary
        prompt = sequence.request.prompt_token_ids
        shown = sequence.request.options.shown_ids
        self._detokenizer = Detokenizer(vocabulary, self._params, prompt, stops, shown)
        self._num_read = 0
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative_logprob = 0.0

    def note(self, logprobs: dict[int, Logprob], token_id: int) -> None:
        """Log-probabilities at the place of `token_id`, which the sequence has just been given."""
        self._logprobs.append(with_text(logprobs, self._vocabulary))
        self._cumulative_logprob += logprobs[token_id].logprob

    def read_grammar(self) -> Matcher | None:
        """Read the newest tokens; returns the matcher if its mask is due. Raises `MatchError`."""
        matcher = self.sampling_row.matcher
        is_due = matcher is not None and matcher.read(self.sequence.output_token_ids)
        return matcher if is_due else None

    def follow_grammar(self) -> None:
        """Work out which tokens may come next. Raises `MatchError` where that takes too much."""
        if self.sampling_row.matcher is not None:
            self.sampling_row.matcher.follow(self.sequence.output_token_ids)

    def find_stop_string(self, ending: Ending | None) -> str | None:
        """See `ShownText`."""
        self._read(ending)
        return self._detokenizer.stop

    def output(self) -> CompletionOutput:
        """Everything so far; `delta` is what is new since the last call."""
        ending = self.sequence.ending
        self._read(ending)
        of = SoFar if ending is None else list
        wants_logprobs = self._params.logprobs is not None
        return CompletionOutput(
            index=self.sequence.index,
            text=self._detokenizer.text,
            token_ids=of(self.sequence.output_token_ids),
            cumulative_logprob=self._cumulative_logprob if wants_logprobs else None,
            logprobs=of(self._logprobs) if wants_logprobs else None,
            finish_reason=None if ending is None else ending.reason,
            stop_reason=None if ending is None else ending.stop_reason,
            delta=self._detokenizer.take_delta(),
        )

    def _read(self, ending: Ending | None) -> None:
        """Turn the tokens that are new into text, all of it if they are the last.

        A token that stops the output is not part of its text, unless that was asked for.
        """
        token_ids = self.sequence.output_token_ids
        is_stopped = ending is not None and ending.reason == "stop"
        hides_last = is_stopped and not self._params.include_stop_str_in_output
        end = len(token_ids) - 1 if hides_last else len(token_ids)
        if end > self._num_read:
            self._detokenizer.append(token_ids[self._num_read : end], end)
            self._num_read = end
        if ending is not None:
            self._detokenizer.flush()


def with_text(logprobs: dict[int, Logprob], vocabulary: Vocabulary) -> dict[int, Logprob]:
    """The same entries with each token's text filled in."""
    return {
        token_id: Logprob(entry.logprob, entry.rank, vocabulary.token_text(token_id))
        for token_id, entry in logprobs.items()
    }
