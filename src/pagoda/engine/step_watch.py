"""How long the running step has taken: a step that hangs is told from one that is long.

step of 8 tokens     |----|                        0.2 s   ┐ 25 ms a token, of late
step of 24 tokens           |------------|         0.6 s   ┘
step of 512 tokens                         |------ … may take 10 × 512 × 25 ms = 128 s

A step may always take `timeout_s`, and never more than 10 × `timeout_s`. That is also what any may
take before the first one has been waited for: until then nobody knows what a token takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pagoda.engine.prefill_rate import PrefillRate

_PATIENCE = 10
"""How many times what its tokens took of late a step may take: few tokens take longer each than
many, and tokens with much before them longer than others. Also how many times the timeout."""
_KEPT = 0.9
"""What each step leaves of the weight of those before it: one that was slow is soon forgotten."""


@dataclass(frozen=True, slots=True)
class HungStep:
    """A step that has taken longer than it can need."""

    age_s: float
    limit_s: float
    num_tokens: int
    """Tokens that it computes; 0 if it hangs before that is decided."""

    def __str__(self) -> str:
        return (
            f"a step of {self.num_tokens} tokens has not ended for {self.age_s:.0f} s, "
            f"at most {self.limit_s:.0f} s were expected"
        )


class _Running(NamedTuple):
    """The step that runs; replaced as a whole, so that any thread reads what belongs together."""

    began: float
    num_tokens: int
    num_sequences: int
    is_concluded: bool


class StepWatch:
    """When the running step began and how many tokens it has. One thread steps, any may look."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.prefill_rate = PrefillRate()
        """Of the steps that were watched."""
        self._running: _Running | None = None
        self._seconds = 0.0
        self._num_tokens = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._running = _Running(self._clock(), 0, 0, is_concluded=False)

    def hold(self, num_tokens: int, num_sequences: int = 1) -> None:
        """The step that runs computes so many tokens, of so many sequences."""
        running = self._running
        if running is not None:
            self._running = running._replace(num_tokens=num_tokens, num_sequences=num_sequences)

    def conclude(self) -> None:
        """The tokens that the step computes are here."""
        running = self._running
        if running is not None:
            self._running = running._replace(is_concluded=True)

    def end(self) -> None:
        """The step has ended, however it did; one that was concluded tells what tokens take."""
        running, self._running = self._running, None
        if running is not None and running.is_concluded:
            seconds = self._clock() - running.began
            self._seconds = _KEPT * self._seconds + seconds
            self._num_tokens = _KEPT * self._num_tokens + running.num_tokens
            self.prefill_rate.note(running.num_tokens, running.num_sequences, seconds)

    @property
    def age_s(self) -> float:
        """Seconds since the running step began; 0 while none runs."""
        running = self._running
        return 0.0 if running is None else self._clock() - running.began

    def hung(self, timeout_s: float) -> HungStep | None:
        """The running step, if it takes longer than its tokens may, and than `timeout_s`.

        Until a step has been concluded, nobody knows what tokens take: kernels may be compiled.
        """
        running = self._running
        if running is None:
            return None
        limit_s = _PATIENCE * timeout_s
        if self._num_tokens:
            pace_s = self._seconds / self._num_tokens
            limit_s = min(limit_s, max(timeout_s, _PATIENCE * pace_s * running.num_tokens))
        age_s = self._clock() - running.began
        return HungStep(age_s, limit_s, running.num_tokens) if age_s > limit_s else None
