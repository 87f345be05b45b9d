"""What became of a prediction: hit or miss, from what, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Figures = dict[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one observation."""

    id: str
    basis: str
    """What the prediction started from: memory, device, blocks, or figures alone."""
    predicted: Figures
    observed: Figures
    reason: str
    """Empty for a hit."""
    unstated: str = ""
    """Which of several possibilities fits, where the post does not say."""

    @property
    def is_hit(self) -> bool:
        return not self.reason


def report(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The verdicts as plain values: how many, what was missed and why, what was not stated."""
    return {
        "cases": len(verdicts),
        "hits": sum(verdict.is_hit for verdict in verdicts),
        "misses": [
            {
                "id": verdict.id,
                "predicted": verdict.predicted,
                "observed": verdict.observed,
                "reason": verdict.reason,
            }
            for verdict in verdicts
            if not verdict.is_hit
        ],
        "by_basis": dict(Counter(verdict.basis for verdict in verdicts)),
        "not_stated": {
            verdict.id: verdict.unstated
            for verdict in verdicts
            if verdict.is_hit and verdict.unstated
        },
    }
