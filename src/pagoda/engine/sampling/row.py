"""One sequence whose next token is wanted, as samplers see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pagoda.engine.grammar import Matcher
from pagoda.engine.sampling.rule import Entries, Rule
from pagoda.engine.sampling.rules.table import RULES
from pagoda.engine.sampling.token_counts import TokenCounts
from pagoda.request import SamplingParams
from pagoda.scheduling import Sequence as RunningSequence

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would overflow float32."""

_CHOICE_STRIDE = 0x9E3779B97F4A7C15
"""Keeps the draws of a request's choices apart (the golden ratio in 64 bits)."""


@dataclass(frozen=True)
class SamplingRow:
    """One sequence whose next token is wanted. The lists are only read.

    One object serves a sequence for all of its steps: `output_token_ids` may grow between them.
    """

    params: SamplingParams
    seed: int
    """Start of the sequence's draws; any integer, used modulo 2**64."""
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """Tokens chosen so far; their number is the position of the draw."""
    stop_token_ids: frozenset[int]
    """Tokens that would end the output; masked until `min_tokens` are there."""
    matcher: Matcher | None = None
    """Follows the output through the request's grammar."""
    rules: tuple[Rule, ...] = field(init=False)
    """The rules that the parameters ask for, in the order of `RULES`."""
    is_greedy: bool = field(init=False)
    """The most likely token is chosen; nothing is drawn."""

    def __post_init__(self) -> None:
        rules = tuple(rule for rule in RULES if rule.is_asked(self.params))
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "is_greedy", self.params.temperature < GREEDY_BELOW)

    @classmethod
    def of(cls, sequence: RunningSequence) -> SamplingRow:
        """The row of a sequence, now and in every later step."""
        request = sequence.request
        return cls(
            params=request.sampling,
            seed=(request.seed + sequence.index * _CHOICE_STRIDE) % 2**64,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=sequence.output_token_ids,
            stop_token_ids=request.stop_token_ids,
            matcher=request.grammar and request.grammar.matcher(request.options.thought),
        )

    @property
    def changes_logits(self) -> bool:
        """A grammar or a rule changes the logits of the next token."""
        if self.matcher is not None:
            return True
        return bool(self.rules) and any(rule.is_due(self) for rule in self.rules)

    @property
    def awaits_token(self) -> bool:
        """What changes the logits of the next token depends on the one that is being drawn."""
        if self.matcher is not None:
            return True
        return bool(self.rules) and any(r.reads_output and r.is_due(self) for r in self.rules)

    def edits(self, vocab_size: int) -> Iterator[tuple[Rule, Entries]]:
        """What the rules say of the next token, in their order."""
        for rule in self.rules:
            if rule.is_due(self):
                entries = rule.entries(self).within(vocab_size)
                if len(entries.token_ids):
                    yield rule, entries

    @cached_property
    def allowed(self) -> NDArray[np.int64]:
        """The tokens of `allowed_token_ids`, each once."""
        return np.unique(np.asarray(self.params.allowed_token_ids or (), np.int64))

    @cached_property
    def said(self) -> TokenCounts:
        """The output's tokens."""
        return TokenCounts(self.output_token_ids)

    @cached_property
    def seen(self) -> TokenCounts:
        """The tokens of prompt and output."""
        return TokenCounts(self.output_token_ids, start=self.prompt_token_ids)
