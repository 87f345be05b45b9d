"""What more or less memory would find of the prompts, where the server follows other sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pagoda.doctor.wording import percent

_LRU = "lru"
_POLICY = re.compile(r"[a-z]{1,16}")  # and no text that a stranger wants to be printed
METRIC = "prefix_cache_hit_rate_at"


@dataclass(frozen=True, slots=True)
class OtherSizes:
    """Hit rates by size, in pools of what there is; 1 is among them."""

    policy: str
    """The server's own."""
    own: Mapping[float, float]
    lru: Mapping[float, float]
    """The same where that is its own."""

    @property
    def now(self) -> float:
        """What is found lately."""
        return self.own[1.0]

    def at(self, multiple: float) -> float | None:
        """Under the server's own policy, between two sizes in proportion to their logarithm.

        None outside of the sizes that there are.
        """
        sizes = sorted(self.own)
        if not sizes[0] <= multiple <= sizes[-1]:
            return None
        for low, high in pairwise(sizes):
            if multiple <= high:
                part = math.log(multiple / low) / math.log(high / low)
                return self.own[low] + part * (self.own[high] - self.own[low])
        return self.own[sizes[-1]]


def told_rate(sizes: OtherSizes | None, multiple: float) -> str:
    """A sentence on what so many times the memory would find; empty where that is not known."""
    then = None if sizes is None else sizes.at(multiple)
    if sizes is None or then is None:
        return ""
    return f" Of prompts' tokens {percent(then)} would be found, {percent(sizes.now)} are now."


def other_sizes_of(rows: Sequence[tuple[Mapping[str, str], float]]) -> OtherSizes | None:
    """From labels and values of the gauge; None where they are not there or make no sense.

    Replicas are taken together.
    """
    seen: dict[str, dict[float, list[float]]] = {}
    for labels, value in rows:
        multiple, policy = _multiple(labels.get("multiple", "")), labels.get("policy", "")
        if multiple is not None and _POLICY.fullmatch(policy) and 0 <= value <= 1:
            seen.setdefault(policy, {}).setdefault(multiple, []).append(value)
    rates = {
        policy: {multiple: sum(values) / len(values) for multiple, values in sizes.items()}
        for policy, sizes in seen.items()
    }
    if not 1 <= len(rates) <= 2 or not all(1.0 in sizes for sizes in rates.values()):
        return None
    policy = min(rates, key=lambda name: name == _LRU)
    return OtherSizes(policy, rates[policy], rates.get(_LRU, {}))


def _multiple(text: str) -> float | None:
    try:
        multiple = float(text)
    except ValueError:
        return None
    return multiple if 0 < multiple < math.inf else None
