"""How likely what has not been used for a while is used again, learned from what happened.

class               ages, in blocks released since                     worth keeping?
used once           ███▇▅▃▂▁▁▁▁▁▁▁                                     while it is young
used twice          ▁▁▂▅▇▆▃▂▁▁▁▁▁▁   people answer after a while       until the peak is over
                    |---|------|--------------|  ranges that grow by √2
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

_STEP = log(2) / 2
"""Logarithm of a range's end over its begin: finer than doubling, or a peak is blurred."""
_FIRST_END = 1 / 16
"""End of the first range, in pools of blocks released."""
_LAST_END = 8.0
"""What was not used for so many pools is past learning."""
_PRIOR = 0.3
"""Chance of a use in a range while nothing is known: the same in each, so the oldest goes first."""
_DOUBT = 8.0
"""Requests' worth of blocks that the prior counts for."""
_HALF_LIFE = 4.0
"""Pools of blocks released until what was learned counts half."""


class AgeClass(NamedTuple):
    """Blocks of one class whose age is in one range."""

    kind: int
    age: int


class ReuseOdds:
    """Counts uses and disappointments by class and age; tells what each is worth.

    The worth of keeping a block of some class and age is the most hits it brings for a place and a
    unit of time, over all times one might wait: an index as Gittins's. So an age before a peak of
    uses is worth keeping, and the same age after it is not. After Beckmann, Chen, Cidon: LHD,
    Improving cache hit rate by maximizing hit density, NSDI 2018, which waits for ever.
    """

    def __init__(self, num_classes: int, num_blocks: int) -> None:
        num_ranges = round(log(_LAST_END / _FIRST_END) / _STEP) + 1
        first = _FIRST_END * num_blocks
        self.bounds = [first * exp(_STEP * number) for number in range(num_ranges)]
        begins, ends = [0.0, *self.bounds], [*self.bounds, 2 * self.bounds[-1]]
        self._widths = [end - begin for begin, end in zip(begins, ends, strict=True)]
        self._first = log(first)
        self._num_blocks = num_blocks
        self._used = [[0.0] * len(self._widths) for _ in range(num_classes)]
        self._given_up = [[0.0] * len(self._widths) for _ in range(num_classes)]
        self._num_released = self._num_requests = 0.0

    def age_of(self, num_released: int) -> int:
        """Number of the range in which so many blocks were released."""
        if num_released <= self.bounds[0]:
            return 0
        return min(len(self.bounds), int((log(num_released) - self._first) / _STEP) + 1)

    def used(self, kind: int, num_released: int) -> None:
        """A block was used again, after so many blocks were released."""
        self._used[kind][self.age_of(num_released)] += 1

    def given_up(self, kind: int, num_released: int) -> None:
        """Nobody waits any more for a block to be used again."""
        self._given_up[kind][self.age_of(num_released)] += 1

    def released(self, *, ends_request: bool) -> None:
        """A block was released."""
        self._num_released += 1
        self._num_requests += ends_request

    def fade(self, num_released: int) -> None:
        """What was learned counts less, the more blocks were released meanwhile."""
        keep = 0.5 ** (num_released / (_HALF_LIFE * self._num_blocks))
        self._num_released *= keep
        self._num_requests *= keep
        for table in (self._used, self._given_up):
            for row in table:
                row[:] = [count * keep for count in row]

    def order(self) -> list[AgeClass]:
        """All classes and ages, the one least worth keeping first; of equals the older."""
        worths = [
            (self._worth(chances, age), -age, kind)
            for kind, chances in enumerate(self._chances())
            for age in range(len(chances))
        ]
        return [AgeClass(kind, -age) for _, age, kind in sorted(worths)]

    def _chances(self) -> list[list[float]]:
        """Of each class, how likely a block that reaches a range is used in it.

        What little is known of a class is filled up from all classes together, and those from the
        prior.
        """
        doubt = _DOUBT * max(1.0, self._num_released) / max(1.0, self._num_requests)
        at_risk = [self._at_risk(kind) for kind in range(len(self._used))]
        together = [_PRIOR] * len(self._widths)
        together = _filled_up(_added(self._used), _added(at_risk), doubt, together)
        pairs = zip(self._used, at_risk, strict=True)
        return [_filled_up(used, risk, doubt, together) for used, risk in pairs]

    def _at_risk(self, kind: int) -> list[float]:
        """Blocks of a class that reached each range; half of those given up in it."""
        used, given_up = self._used[kind], self._given_up[kind]
        num_alive, row = 0.0, [0.0] * len(used)
        for age in reversed(range(len(used))):
            num_alive += used[age] + given_up[age]
            row[age] = num_alive - given_up[age] / 2
        return row

    def _worth(self, chances: list[float], age: int) -> float:
        """The most hits for a place and a unit of time, waiting from a range on."""
        best, alive, hits, time = 0.0, 1.0, 0.0, 0.0
        for chance, width in zip(chances[age:], self._widths[age:], strict=True):
            hits += alive * chance
            time += alive * width * (1 - chance / 2)
            alive *= 1 - chance
            if hits > best * time:
                best = hits / time
        return best


def _added(rows: list[list[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _filled_up(
    used: list[float], at_risk: list[float], doubt: float, prior: list[float]
) -> list[float]:
    """Used, of those at risk, as if `doubt` more had been, of which the prior's part was used."""
    return [
        (uses + doubt * chance) / (risk + doubt)
        for uses, risk, chance in zip(used, at_risk, prior, strict=True)
    ]
