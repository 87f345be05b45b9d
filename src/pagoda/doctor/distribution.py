"""How values were spread in some time, as far as a histogram's buckets tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Bucket:
    """Values in (lower, upper]."""

    lower: float
    upper: float
    count: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values observed in some time."""

    count: float
    total: float
    """All values added up."""
    buckets: tuple[Bucket, ...]
    """Rising; the last one's upper end may be infinite."""

    @classmethod
    def of(cls, count: float, total: float, below: Mapping[float, float]) -> Distribution:
        """From how many values are at most each bound, as Prometheus counts."""
        bounds = sorted(below)
        ends = pairwise([(0.0, 0.0), *((bound, below[bound]) for bound in bounds)])
        return cls(
            count,
            total,
            tuple(
                # Buckets are read one after the other, so one may lag behind the one before it.
                Bucket(lower, upper, max(high - low, 0.0))
                for (lower, low), (upper, high) in ends
            ),
        )

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count > 0 else None

    @property
    def least(self) -> float | None:
        """No value was smaller than this."""
        filled = [bucket.lower for bucket in self.buckets if bucket.count > 0]
        return filled[0] if filled else None
