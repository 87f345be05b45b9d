"""What a replay found of what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of all requests that were served."""

    num_requests: int
    refused: Sequence[int]
    """Places in the trace of those that were not: no pool, or no server, could take them."""
    num_prompt_tokens: int
    """Looked up in the cache."""
    num_hit_tokens: int
    num_evictions: int

    @property
    def num_refused(self) -> int:
        return len(self.refused)

    @property
    def hit_rate(self) -> float:
        """Tokens found of those asked for."""
        return self.num_hit_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0
