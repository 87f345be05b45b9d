"""How quickly prompts are computed, as it was measured of late."""

from __future__ import annotations

from collections import deque
from statistics import median

_LEAST_TOKENS = 32
"""Of a step that tells something: for fewer, reading the weights is what takes time."""
_KEPT = 15


class PrefillRate:
    """The middle of the last few steps that were mostly prompts. So one that compiled something, or
    was held up, says nothing. One thread notes, any may ask."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        """What a token took in each of the last steps."""
        self._median: float | None = None

    def note(self, num_tokens: int, num_sequences: int, seconds: float) -> None:
        """A step of so many tokens has taken so long."""
        if num_tokens >= max(_LEAST_TOKENS, 2 * num_sequences):
            self._seconds.append(seconds / num_tokens)
            self._median = median(self._seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """None: nothing has been measured."""
        return None if not self._median else 1 / self._median

    def seconds(self, num_tokens: int) -> float | None:
        """What computing so many tokens of a prompt takes; None: nothing has been measured."""
        return None if self._median is None else self._median * num_tokens
