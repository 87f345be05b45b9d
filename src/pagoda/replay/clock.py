"""The time of a replay, which goes on as the model of time says."""

from __future__ import annotations


class Clock:
    """Seconds since the trace's beginning. Only `ScheduleReplay` moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        """What it shows."""
        return self.now

    def wait_until(self, at: float) -> None:
        """No effect if that has passed."""
        self.now = max(self.now, at)
