"""A breaker: a tier that keeps failing is left alone, and tried now and then.

    closed ── 5 failures in a row ──> open ── after 0.5 s, then 1, 2, 4, 8 ──> half-open
       ^                               ^ ──────────── the probe fails ───────────── │
       └─────────────────────────────────────────── a call succeeds ────────────────┘

Calls of several kinds may share one: a kind that succeeds says nothing of another that fails, as of
a line that breaks off in the middle of each frame, and answers small questions at once.

Any thread may call it. It starts nothing and waits for nothing: whoever probes asks `allows` first.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

NUM_FAILURES = 5
"""In a row, until a tier is left alone."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 8.0
"""So that a tier which is well again is found to be so within 10 seconds."""


class BreakerState(StrEnum):
    """As metrics call it."""

    CLOSED = "closed"
    """Calls are made."""
    OPEN = "open"
    """None are made."""
    HALF_OPEN = "half_open"
    """One has been allowed, and nothing is known of it yet."""


class Breaker:
    """Counts failures in a row, and says when the next call may be made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds that never go back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._failures: Counter[str] = Counter()
        """In a row, of each kind of call."""
        self._wait_s = 0.0
        self._allows_at = 0.0

    @property
    def state(self) -> BreakerState:
        """As of now."""
        return self._state

    @property
    def is_closed(self) -> bool:
        """Calls are made as ever."""
        return self._state is BreakerState.CLOSED

    def allows(self) -> bool:
        """Whether a call may be made now. Of a breaker that is not closed, one may in each wait:
        whoever is told so makes it. One that never comes back keeps nobody from trying again."""
        with self._lock:
            if self._state is BreakerState.CLOSED:
                return True
            now = self._clock()
            if now < self._allows_at:
                return False
            self._state = BreakerState.HALF_OPEN
            self._allows_at = now + self._wait_s
            return True

    def succeeded(self, kind: str = "") -> None:
        """A call did what it should. A breaker that was not closed is, for calls of all kinds."""
        with self._lock:
            if self._state is BreakerState.CLOSED:
                self._failures.pop(kind, None)
            else:
                self._state = BreakerState.CLOSED
                self._failures.clear()

    def failed(self, kind: str = "") -> None:
        """A call did not. Those that come back while it is open, begun before, count no more."""
        with self._lock:
            if self._state is BreakerState.CLOSED:
                self._failures[kind] += 1
                if self._failures.total() >= NUM_FAILURES:
                    self._open(FIRST_WAIT_S)
            elif self._state is BreakerState.HALF_OPEN:
                self._open(min(2 * self._wait_s, LONGEST_WAIT_S))

    def _open(self, wait_s: float) -> None:
        self._state = BreakerState.OPEN
        self._wait_s = wait_s
        self._allows_at = self._clock() + wait_s
