"""What became of one request, and of all of them."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_SHARES = (0.5, 0.9, 0.99)


class Course:
    """One request on its way."""

    __slots__ = (
        "arrival_s",
        "first_token_s",
        "held_since_s",
        "last_step_s",
        "num_blocks",
        "num_output_tokens",
        "stay",
        "tenant",
    )

    def __init__(self, arrival_s: float, tenant: str, num_output_tokens: int) -> None:
        self.arrival_s = arrival_s
        self.tenant = tenant
        self.num_output_tokens = num_output_tokens
        """That it is to have."""
        self.first_token_s: float | None = None
        self.num_blocks = 0
        """That it holds, since `held_since_s`."""
        self.held_since_s = 0.0
        self.last_step_s = 0.0
        """When the last step ended that it was part of."""
        self.stay = 0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a time in seconds; None where there is none."""

    p50: float | None
    p90: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        if not values:
            return cls(None, None, None)
        return cls(*(float(each) for each in np.quantile(np.asarray(values), _SHARES)))


class Records:
    """Figures over all requests, 16 bytes each."""

    def __init__(self) -> None:
        self._first_token_s = array("d")
        self._end_to_end_s = array("d")
        self._block_seconds: defaultdict[str, float] = defaultdict(float)

    def stepped(
        self, course: Course, stay: int, num_blocks: int, begin_s: float, end_s: float
    ) -> None:
        """A step from `begin_s` to `end_s` is planned with so many blocks of the request."""
        if num_blocks != course.num_blocks or stay != course.stay:
            self._account(course, begin_s if stay == course.stay else course.last_step_s)
            course.num_blocks, course.stay, course.held_since_s = num_blocks, stay, begin_s
        course.last_step_s = end_s

    def first_token(self, course: Course, now_s: float) -> None:
        """The request has its first token."""
        course.first_token_s = now_s
        self._first_token_s.append(now_s - course.arrival_s)

    def ended(self, course: Course, now_s: float) -> None:
        """The request is over, and lets go of its blocks."""
        self._end_to_end_s.append(now_s - course.arrival_s)
        self.given_up(course, now_s)

    def given_up(self, course: Course, now_s: float) -> None:
        """Nobody waits for the request any more, and it lets go of its blocks."""
        self._account(course, now_s)
        course.num_blocks = 0

    def _account(self, course: Course, until_s: float) -> None:
        seconds = max(0.0, until_s - course.held_since_s)
        self._block_seconds[course.tenant] += course.num_blocks * seconds

    @property
    def time_to_first_token(self) -> Percentiles:
        return Percentiles.of(self._first_token_s)

    @property
    def end_to_end(self) -> Percentiles:
        return Percentiles.of(self._end_to_end_s)

    @property
    def block_seconds(self) -> Mapping[str, float]:
        """Blocks times the seconds they were held, by tenant; a shared one counts for each."""
        return dict(sorted(self._block_seconds.items()))
