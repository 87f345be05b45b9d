"""From values to places along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_SMALLEST_CHANGE = 0.001
"""Changes below are told apart less and less."""
_STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

Bend = Callable[[float], float]


def about_zero(change: float) -> float:
    """Even near 0, and by powers far from it: changes that are noise stand beside large ones."""
    return math.asinh(change / _SMALLEST_CHANGE)


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values, bent, and the places of its ends."""

    bend: Bend
    low: float
    high: float
    start: float
    """Where `low` stands."""
    stop: float
    """Where `high` stands."""

    def __call__(self, value: float) -> float:
        """The place of a value; one outside the range is outside the places too."""
        first, last = self.bend(self.low), self.bend(self.high)
        return self.start + (self.bend(value) - first) / (last - first) * (self.stop - self.start)

    def holds(self, value: float) -> bool:
        """Whether the value is in the range."""
        return self.low <= value <= self.high

    def changes(self) -> Iterator[float]:
        """Round changes within the range, 0 among them."""
        steps = (*(-each for each in reversed(_STEPS)), 0.0, *_STEPS)
        return filter(self.holds, steps)

    def powers(self) -> Iterator[float]:
        """Powers of ten within the range."""
        first, last = (math.log10(each) for each in (self.low, self.high))
        return (10.0**power for power in range(math.ceil(first), math.floor(last) + 1))
