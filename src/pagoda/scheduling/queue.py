"""The order in which sequences get their turn, among those that run and those that wait.

Sequences of one tenant and level are a lane. Lanes of a lower level go first, and of one level the
lane whose tenant has been served least; in a lane whoever arrived first.

    level 0   tenant b, served   120 tokens   | arrived 7 | 9 |
    level 0   tenant a, served 9,300 tokens   | arrived 1 | 2 | 3 | 4 | …
    level 5   tenant b, served   120 tokens   | arrived 8 |
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from pagoda.scheduling.sequence import Sequence
from pagoda.scheduling.service import Service

Level = Callable[[Sequence], float]


def same_level(sequence: Sequence) -> float:
    """Nobody goes before others but by arriving first."""
    return 0


def by_priority(sequence: Sequence) -> float:
    """A lower priority value goes first."""
    return sequence.request.options.priority


POLICIES: dict[str, Level] = {"fcfs": same_level, "priority": by_priority}
"""Scheduling policies by the name users give: the level of a sequence, which must not change."""


class Lane(NamedTuple):
    """Sequences among which whoever arrived first goes first."""

    level: float
    tenant: str


def _arrival(sequence: Sequence) -> tuple[float, int]:
    return (sequence.request.arrival_time, sequence.sequence_id)


class OrderedSequences:
    """Sequences kept in a policy's order, lane by lane."""

    def __init__(self, level: Level, service: Service) -> None:
        self._level = level
        self._service = service
        self._lanes: dict[Lane, list[Sequence]] = {}
        """None of them is empty."""
        self._num_of: Counter[str] = Counter()
        """Sequences by tenant."""

    def lane_of(self, sequence: Sequence) -> Lane:
        return Lane(self._level(sequence), sequence.tenant)

    def add(self, sequence: Sequence) -> None:
        insort(self._lanes.setdefault(self.lane_of(sequence), []), sequence, key=_arrival)
        self._num_of[sequence.tenant] += 1

    def discard(self, sequence: Sequence) -> None:
        """No effect if it is not among them."""
        with suppress(ValueError):
            self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Raises ValueError if it is not among them."""
        name = self.lane_of(sequence)
        lane = self._lanes.get(name, [])
        at = bisect_left(lane, _arrival(sequence), key=_arrival)
        if at == len(lane) or lane[at] is not sequence:
            raise ValueError(f"{sequence} is not here")
        del lane[at]
        self._num_of[sequence.tenant] -= 1
        if not lane:
            del self._lanes[name]

    def clear(self) -> None:
        """None is here."""
        self._lanes.clear()
        self._num_of.clear()

    @property
    def lanes(self) -> Set[Lane]:
        """Those that somebody is in, in no order (see `in_order`)."""
        return self._lanes.keys()

    def of(self, lane: Lane) -> list[Sequence]:
        """Those of a lane, in order; not to be changed, and to be copied before others do."""
        return self._lanes.get(lane, [])

    def num_of(self, tenant: str) -> int:
        """Sequences of a tenant."""
        return self._num_of[tenant]

    def last(self, is_meant: Callable[[str], bool]) -> Sequence:
        """The one whose turn comes last, of tenants that are meant. Raises IndexError if there is
        none."""
        lanes = [lane for lane in self._lanes if is_meant(lane.tenant)]
        return self._lanes[in_order(lanes, self._service)[-1]][-1]

    def __iter__(self) -> Iterator[Sequence]:
        """In order, over those that are here now, even if some are removed meanwhile."""
        return chain.from_iterable(
            [self.of(lane)[:] for lane in in_order(self.lanes, self._service)]
        )

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))


def in_order(lanes: Iterable[Lane], service: Service) -> list[Lane]:
    """Lanes in the order in which they get their turn."""
    return sorted(lanes, key=lambda lane: (lane.level, service.turn_of(lane.tenant)))
