"""Tokens that an engine has computed, found and generated, by tenant."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from pagoda.scheduling import Sequence, StepPlan


@dataclass(slots=True)
class TokenCounts:
    """Of one tenant, since the start."""

    requests: int = 0
    prompt_tokens: int = 0
    """In the prompts of all requests that came."""
    cached_tokens: int = 0
    """Of prompts that are done: what came from the cache."""
    computed_tokens: int = 0
    """All that went through the model, answers too, and what was computed again."""
    generated_tokens: int = 0
    """Without those that nobody wanted (see `SamplingParams.prompt_alone`)."""


class Meter:
    """Counts for each tenant. One thread tells it what happens; any may read the counts."""

    def __init__(self) -> None:
        self._counts: dict[str, TokenCounts] = {}
        self._counts_of: dict[int, TokenCounts] = {}
        """By the id of an unfinished sequence."""

    @property
    def counts(self) -> Mapping[str, TokenCounts]:
        """By tenant; they go on."""
        return dict(self._counts)

    def arrived(self, sequences: Iterable[Sequence]) -> None:
        """The choices of a request wait from now on."""
        for sequence in sequences:
            counts = self._counts.setdefault(sequence.tenant, TokenCounts())
            self._counts_of[sequence.sequence_id] = counts
            if sequence.index == 0:
                counts.requests += 1
                counts.prompt_tokens += sequence.num_prompt_tokens

    def scheduled(self, plan: StepPlan) -> None:
        """A step begins."""
        for each in plan.sequences:
            self._counts_of[each.sequence_id].computed_tokens += each.num_scheduled_tokens

    def progressed(self, sequence: Sequence) -> None:
        """The sequence has a new token."""
        counts = self._counts_of[sequence.sequence_id]
        counts.generated_tokens += not sequence.request.sampling.prompt_alone
        if sequence.num_output_tokens == 1 and sequence.index == 0:
            counts.cached_tokens += sequence.num_cached_tokens

    def forget(self, sequence_id: int) -> None:
        """The sequence goes on no more; no effect if it is not known."""
        self._counts_of.pop(sequence_id, None)

    def forget_others(self, sequence_ids: Container[int]) -> None:
        """No other sequences than these go on."""
        for sequence_id in [each for each in self._counts_of if each not in sequence_ids]:
            self.forget(sequence_id)
