"""What became of a prediction: hit, miss or not to be known, from what, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

Figures = dict[str, int | float | str]


class VerdictKind(Enum):
    """The three classes of a verdict."""

    HIT = "hit"
    """Every printed figure was predicted."""
    MISS = "miss"
    """All that it takes was told, and another figure was predicted."""
    UNKNOWN = "unknown"
    """The post leaves out what the figures depend on."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one observation."""

    id: str
    basis: str
    """What the prediction started from: memory, device, blocks, or figures alone."""
    predicted: Figures
    observed: Figures
    kind: VerdictKind
    reason: str
    """Empty for a hit."""
    unstated: str = ""
    """Which of several possibilities fits, where the post does not say."""

    @property
    def is_hit(self) -> bool:
        return self.kind is VerdictKind.HIT


def count(verdicts: Sequence[Verdict], kind: VerdictKind) -> int:
    """How many there are of one class."""
    return sum(verdict.kind is kind for verdict in verdicts)


def report(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The verdicts as plain values: how many of each class, why, and what was not stated."""
    return {
        "cases": len(verdicts),
        "hits": count(verdicts, VerdictKind.HIT),
        "misses": _told(verdicts, VerdictKind.MISS),
        "unknown": _told(verdicts, VerdictKind.UNKNOWN),
        "by_basis": dict(Counter(verdict.basis for verdict in verdicts)),
        "not_stated": {
            verdict.id: verdict.unstated
            for verdict in verdicts
            if verdict.is_hit and verdict.unstated
        },
    }


def _told(verdicts: Sequence[Verdict], kind: VerdictKind) -> list[dict[str, Any]]:
    return [
        {
            "id": verdict.id,
            "predicted": verdict.predicted,
            "observed": verdict.observed,
            "reason": verdict.reason,
        }
        for verdict in verdicts
        if verdict.kind is kind
    ]
