"""What became of one request, and of all of them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SHARES = (0.5, 0.9, 0.99)


class Course:
    """One request on its way."""

    __slots__ = (
        "arrival_s",
        "first_token_s",
        "num_output_tokens",
    )

    def __init__(self, arrival_s: float, num_output_tokens: int) -> None:
        self.arrival_s = arrival_s
        self.num_output_tokens = num_output_tokens
        """That it is to have."""
        self.first_token_s: float | None = None


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

    def first_token(self, course: Course, now_s: float) -> None:
        """The request has its first token."""
        course.first_token_s = now_s
        self._first_token_s.append(now_s - course.arrival_s)

    def ended(self, course: Course, now_s: float) -> None:
        """The request is over."""
        self._end_to_end_s.append(now_s - course.arrival_s)

    @property
    def time_to_first_token(self) -> Percentiles:
        return Percentiles.of(self._first_token_s)

    @property
    def end_to_end(self) -> Percentiles:
        return Percentiles.of(self._end_to_end_s)
