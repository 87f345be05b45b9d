"""A step in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagoda.cache import BlockCopy
from pagoda.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Share:
    """What one sequence has been given of the step."""

    num_tokens: int
    copies: tuple[BlockCopy, ...]


@dataclass(slots=True)
class Draft:
    """Who has been given how much of the step's budget."""

    budget: int
    """Tokens left to give."""
    shares: dict[Sequence, Share] = field(default_factory=dict)
    has_preempted: bool = False

    def give(self, sequence: Sequence, num_tokens: int, copies: tuple[BlockCopy, ...]) -> None:
        self.shares[sequence] = Share(num_tokens, copies)
        self.budget -= num_tokens

    def take_back(self, sequence: Sequence) -> None:
        """The sequence is preempted: whatever it was given goes back."""
        share = self.shares.pop(sequence, None)
        if share is not None:
            self.budget += share.num_tokens
        self.has_preempted = True
