"""When the turns of an engine began, so that a moment can be told by its place among them.

    turn     16          17                     18
             |-----------|----------x-----------|        x: 17.5, half of turn 17 has passed

A server tells by it when a request came, and a replay of its turns when that was by its own clock,
whatever a turn takes there.
"""

from __future__ import annotations

from collections import deque

import numpy as np

_KEPT = 16
"""Requests are taken in after the turn in which they came, or few turns later."""


class TurnTimes:
    """The last turns' beginnings, in seconds. What lies before them counts as the first of them."""

    def __init__(self) -> None:
        self._turns: deque[int] = deque(maxlen=_KEPT)
        self._began: deque[float] = deque(maxlen=_KEPT)

    def begin(self, turn: int, now: float) -> None:
        """A turn begins; once more, if nothing was done in it."""
        if self._turns and self._turns[-1] == turn:
            self._began[-1] = now
            return
        self._turns.append(turn)
        self._began.append(now)

    def place_of(self, at: float, *, num_turns: int, now: float) -> float:
        """Where `at` lies in the turns, of which so many have ended by now."""
        return float(np.interp(at, [*self._began, now], [*self._turns, num_turns]))

    def time_of(self, place: float, *, num_turns: int, now: float) -> float:
        """When a place among the turns was, of which so many have ended by now."""
        return float(np.interp(place, [*self._turns, num_turns], [*self._began, now]))
