"""What a tier was measured at: its round trip, and bytes a second beyond it.

Both are medians of what was seen last, so that one outlier moves neither, and three in a row do. Of
two, the worse one counts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

NUM_KEPT = 5
"""Measurements of each kind; the median of five bears two outliers."""
_LONGEST_AGE_S = 120.0
"""What is older counts only where there is nothing newer."""
_LEAST_TRANSFER = 1 / 8
"""Of the time of a load, if no more of it is left without the round trip. A short load takes little
else, and round trips vary: it must not make a tier look infinitely fast."""
_CLOCK_TICK_S = 1e-6


class Rates:
    """Any thread may call it. `None`: nothing is known yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds that never go back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._round_trips = deque[tuple[float, float]](maxlen=NUM_KEPT)
        self._rates = deque[tuple[float, float]](maxlen=NUM_KEPT)

    @property
    def round_trip_s(self) -> float | None:
        """Seconds that a question takes which moves no frames."""
        with self._lock:
            return self._median(self._round_trips)

    @property
    def bytes_per_s(self) -> float | None:
        """Of a load, once its first byte is there."""
        with self._lock:
            slowness = self._median(self._rates)
        return None if slowness is None else 1 / slowness

    def note_round_trip(self, seconds: float) -> None:
        """A call that moved no frames took so long."""
        with self._lock:
            self._round_trips.append((self._clock(), max(seconds, _CLOCK_TICK_S)))

    def note_load(self, num_bytes: int, seconds: float) -> None:
        """Loading so many bytes in one call took so long, with the round trip."""
        if num_bytes <= 0:
            return
        with self._lock:
            round_trip = self._median(self._round_trips) or 0.0
            seconds = max(seconds, _CLOCK_TICK_S)
            transfer = max(seconds - round_trip, _LEAST_TRANSFER * seconds)
            self._rates.append((self._clock(), transfer / num_bytes))

    def seconds(self, num_bytes: int) -> float | None:
        """What loading so many bytes in one call takes, by these rates."""
        with self._lock:
            slowness = self._median(self._rates)
            round_trip = self._median(self._round_trips) or 0.0
        return None if slowness is None else round_trip + num_bytes * slowness

    def _median(self, noted: Iterable[tuple[float, float]]) -> float | None:
        """Of two in the middle the upper one: these are seconds, and more of them are safer."""
        all_of_them = list(noted)
        if not all_of_them:
            return None
        since = self._clock() - _LONGEST_AGE_S
        recent = sorted(value for at, value in all_of_them if at >= since)
        newest = all_of_them[-1][1]
        return recent[len(recent) // 2] if recent else newest
