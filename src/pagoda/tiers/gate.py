"""The gate: how much of a prefix is worth loading, by what loading and computing take.

    blocks     0 ───────── 40 ──────── 60 ──────── 80
    lie on     host        disk        s3             of 80 blocks that tiers have, the first
    load       0.1 s       0.1 s       1.8 s          60 are loaded, and the rest is computed
    compute    0.4 s       0.2 s       0.2 s

Before that it says what asking a tier may take. Where loading would not pay even if all of a prefix
were there, the answer is good for telling people alone, and may take next to nothing.

Pure arithmetic. What is not known is not loaded: a tier can only help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_SHARE_IN_HOPE = 1 / 2
"""Of the time that computing takes: what an answer may take at most where loading may pay. The rest
is left for the load itself, which takes a round trip too."""
_SHARE_IN_VAIN = 1 / 20


class Offer(Protocol):
    """Blocks of a prefix that follow each other and lie in one tier."""

    @property
    def num_rows(self) -> int:
        """How many."""
        ...

    @property
    def seconds(self) -> float | None:
        """What loading all of them takes by the tier's rates; None: nothing is known of it."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate says to the offers of one prefix."""

    num_rows: int
    """Leading blocks that are loaded: whole offers, or none."""
    num_offers: int
    """Which lie in so many of the offers."""
    load_s: float
    """What loading those takes; offers are taken to be loaded one after the other."""
    compute_s: float
    """What computing those would take."""


NOTHING = Decision(0, 0, 0.0, 0.0)


def leading_worth_loading(offers: Sequence[Offer], row_s: float | None) -> Decision:
    """The leading offers whose loading saves most.

    offers: of a prefix, in its order. row_s: seconds that computing one block takes; None: nothing
    is known of it. The result never takes longer than computing the same blocks does, nor does any
    shorter or longer choice of whole offers save more.
    """
    if row_s is None:
        return NOTHING
    best = NOTHING
    num_rows, load_s = 0, 0.0
    for number, offer in enumerate(offers, start=1):
        if offer.seconds is None:
            break
        num_rows += offer.num_rows
        load_s += offer.seconds
        compute_s = num_rows * row_s
        if compute_s - load_s > best.compute_s - best.load_s:
            best = Decision(num_rows, number, load_s, compute_s)
    return best


def may_pay(load_s: float | None, round_trip_s: float | None, compute_s: float) -> bool:
    """Asking for a prefix and loading it may be quicker than computing it, if all of it is there.

    load_s: what loading all of it takes; None: nothing is known of it. round_trip_s: of the answer.
    """
    return load_s is None or (round_trip_s or 0.0) + load_s < compute_s


def longest_answer_s(compute_s: float, *, pays: bool) -> float:
    """What an answer may take of a tier from which loading may pay or does not."""
    return compute_s * (_SHARE_IN_HOPE if pays else _SHARE_IN_VAIN)
