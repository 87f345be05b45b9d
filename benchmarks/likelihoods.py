"""How likely tokens are by one computation, and how far that is from another's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagoda.engine.outputs import Logprob


@dataclass(frozen=True)
class Likely:
    """Of a prompt, for each place but the first: what might come there."""

    best: list[int]
    logprobs: list[dict[int, float]]
    """Of some tokens, by their ids."""

    @classmethod
    def of(cls, places: Sequence[Mapping[int, Logprob]]) -> Likely:
        """Of what the engine says, the first place left out."""
        return cls(
            [next(token for token, each in place.items() if each.rank == 1) for place in places],
            [{token: each.logprob for token, each in place.items()} for place in places],
        )


def distance(found: Sequence[Likely], exact: Sequence[Likely]) -> tuple[str, str, str]:
    """Cells: how often the best token is the exact one, divergence in the mean and at most."""
    agree, divergences = [], []
    for own, wanted in zip(found, exact, strict=True):
        agree += [a == b for a, b in zip(own.best, wanted.best, strict=True)]
        for place, exact_place in zip(own.logprobs, wanted.logprobs, strict=True):
            both = [token for token in exact_place if token in place]
            divergences.append(
                divergence([exact_place[each] for each in both], [place[each] for each in both])
            )
    return (
        f"{statistics.mean(agree):.1%}",
        f"{statistics.mean(divergences):.5f}",
        f"{max(divergences):.3f}",
    )


def divergence(own: Sequence[float], other: Sequence[float]) -> float:
    """Kullback and Leibler's, of log-probabilities of some outcomes; the rest is one more."""
    named = sum(math.exp(a) * (a - b) for a, b in zip(own, other, strict=True))
    rest, rest_other = (max(1 - math.fsum(map(math.exp, each)), 1e-12) for each in (own, other))
    return named + rest * math.log(rest / rest_other)
