"""A trace: requests by their lengths and hashes, never their text.

Trace ── iterated as often as needed ──> TracedRequest, TracedRequest, …   in order of arrival
      └─ faults                          rows that could not be read, of the last iteration
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagoda.cache.hashed_tokens import HashedTokens
from pagoda.cache.slots import num_blocks_for
from pagoda.cache_hint import CacheHint
from pagoda.replay.faults import Faults
from pagoda.replay.recorded import RecordedSetting


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace."""

    arrival_s: float
    """Seconds from the trace's beginning. Never less than of the request before, unless steps tell
    the order: what takes long to read may reach the engine behind what came later."""
    num_prompt_tokens: int
    num_output_tokens: int
    unit_ids: Sequence[int]
    """Ids of its units, from the first on: equal ids stand for equal prompts up to there."""
    unit_size: int
    num_known_tokens: int
    """Tokens that the ids stand for: of the prompt, and of the answer where they go on there."""
    tenant: str = ""
    cache_salt: str = ""
    """A digest: requests share with those of the same tenant and salt alone."""
    cache_hint: CacheHint | None = None
    arrival_step: int | None = None
    """Turns that the recorded server had taken, in each of which a step was launched, concluded, or
    both, when it took the request in; None where that is not told."""
    arrival_turn: float | None = None
    """The same when the request arrived, with the part of the running turn that had passed; None
    where that is not told, so that it counts as arriving when it was taken in."""
    end_step: int | None = None
    """Turns that it had taken when the request was given up; None if it was not."""
    stopped: bool = False
    """The answer ended by itself, before it was as long as it might have been."""

    @property
    def num_tokens(self) -> int:
        """Of prompt and answer."""
        return self.num_prompt_tokens + self.num_output_tokens

    def prompt(self) -> HashedTokens:
        """The prompt's tokens, of its length."""
        known = self.num_known_tokens
        return HashedTokens(self.unit_ids, self.unit_size, self.num_prompt_tokens, known)

    def prompt_in_blocks(self, block_size: int) -> HashedTokens:
        """The prompt, made longer to whole blocks if the trace has an id for its unfinished unit.

        So count those who publish such traces: whatever has an id is a block.
        """
        num_tokens, known = self.num_prompt_tokens, self.num_known_tokens
        if known == num_tokens and num_tokens % self.unit_size:
            num_tokens = known = num_blocks_for(num_tokens, block_size) * block_size
        return HashedTokens(self.unit_ids, self.unit_size, num_tokens, known)


class Trace(Protocol):
    """Requests in order of arrival; may be iterated again and gives the same."""

    @property
    def name(self) -> str:
        """What people know it by."""
        ...

    @property
    def unit_size(self) -> int:
        """Tokens that an id stands for."""
        ...

    @property
    def faults(self) -> Faults:
        """What could not be read in the iteration that was last begun."""
        ...

    @property
    def recorded(self) -> RecordedSetting | None:
        """The server that it was recorded from, where the trace tells."""
        ...

    @property
    def num_requests(self) -> int | None:
        """None where that shows only at the end."""
        ...

    def __iter__(self) -> Iterator[TracedRequest]: ...
