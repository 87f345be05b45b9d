"""What a shelf has done and what is known of its tier."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace

from pagoda.tiers.tier import TierUsage


@dataclass(slots=True)
class ShelfCounts:
    """Since the start."""

    rows_asked: int = 0
    """Blocks of prefixes that were looked for, each in all groups at once."""
    rows_found: int = 0
    frames_loaded: int = 0
    bytes_loaded: int = 0
    """Of blocks, whatever their frames take."""
    frames_stored: int = 0
    bytes_stored: int = 0
    """Of frames."""
    frames_dropped: int = 0
    """Not stored, because too much was waiting to be."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Frames that were missing or bad when they were loaded, by reason."""
    failures: Counter[str] = field(default_factory=Counter)
    """Calls that the tier could not do, by reason."""


@dataclass(frozen=True, slots=True)
class ShelfStats:
    """As of now."""

    name: str
    """Its kind, with a number where there are several of one kind."""
    is_open: bool
    """It is asked for blocks."""
    takes_stores: bool
    round_trip_s: float | None
    bytes_per_s: float | None
    usage: TierUsage | None
    """As it told last; None: it has not."""
    counts: ShelfCounts

    @property
    def used_bytes(self) -> int | None:
        """What the tier holds; None: it has not told."""
        return None if self.usage is None else self.usage.num_bytes


class Tally:
    """Counts, for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = ShelfCounts()

    def add(self, **numbers: int) -> None:
        """Add to fields of `ShelfCounts`, by their names."""
        with self._lock:
            for name, number in numbers.items():
                setattr(self._counts, name, getattr(self._counts, name) + number)

    def reject(self, reason: str) -> int:
        """Returns how many there are for this reason by now."""
        with self._lock:
            self._counts.rejected[reason] += 1
            return self._counts.rejected[reason]

    def fail(self, reason: str) -> None:
        with self._lock:
            self._counts.failures[reason] += 1

    def counts(self) -> ShelfCounts:
        """A copy."""
        with self._lock:
            own = self._counts
            return replace(own, rejected=own.rejected.copy(), failures=own.failures.copy())
