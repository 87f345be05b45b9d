"""What an answer cost and what the cache saved, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagoda.engine.outputs import RequestOutput


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens of one or several answers, and how long they took."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_new_tokens: int
    duration_s: float

    @classmethod
    def of(cls, outputs: Sequence[RequestOutput], duration_s: float) -> Figures:
        return cls(
            num_prompt_tokens=sum(output.num_prompt_tokens for output in outputs),
            num_cached_tokens=sum(output.num_cached_tokens for output in outputs),
            num_new_tokens=sum(len(c.token_ids) for output in outputs for c in output.outputs),
            duration_s=duration_s,
        )

    @property
    def tokens_per_second(self) -> float:
        return self.num_new_tokens / self.duration_s if self.duration_s > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"prompt {self.num_prompt_tokens:,} tokens, {self.num_cached_tokens:,} from the cache"
            f" · {self.num_new_tokens:,} new tokens, {self.tokens_per_second:.1f} tokens/s"
        )
