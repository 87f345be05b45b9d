"""How often values of some size came up."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """Counts values in buckets. One thread observes; any may read meanwhile.

    (…, bounds[0]]  (bounds[0], bounds[1]]  …  (bounds[-1], …)
       counts[0]           counts[1]             counts[-1]
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` rise; a value that equals one is in the bucket that ends there."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        """Take note of one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def num_values(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bucket's upper bound, and how many values are not above it; infinity is last."""
        num_below = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts[:], strict=True):
            num_below += count
            yield bound, num_below
