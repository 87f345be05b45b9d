"""What an engine did between the first and the last of some scrapes.

    scrape ──── scrape ──┊ restart ┊── scrape ──── scrape
       |── rise ──>|── what it has counted ──>|── rise ──>|

A counter that falls says that its server began anew, and then everything it shows is new. What
makes no sense, or is missing from a scrape, is as it was before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pagoda.doctor.distribution import Distribution
from pagoda.doctor.scrape import Scrape, Series, makes_sense
from pagoda.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class Gauge:
    """What was seen of a gauge, of all engines together."""

    mean: float
    least: float
    most: float


class Window:
    """The scrapes of one model, and what they come to."""

    def __init__(self, scrapes: Sequence[Scrape], model_name: str | None = None) -> None:
        """`scrapes` are in the order of time. `model_name` chooses where a server tells of several.

        Raises `InvalidOptionError` for fewer than two scrapes, scrapes of two kinds of engine or of
        processes that answer in turn, or a model that is not there or that would have to be chosen.
        """
        if len(scrapes) < 2:
            raise InvalidOptionError("watch", len(scrapes), "needs at least two scrapes")
        if len({scrape.engine for scrape in scrapes}) > 1:
            limit = "became another engine's while it was watched"
            raise InvalidOptionError("url", scrapes[-1].engine, limit)
        self.engine = scrapes[-1].engine
        began = [scrape.started_s for scrape in scrapes if scrape.started_s is not None]
        if began != sorted(began):  # each would seem to have counted all it has since the other
            limit = "several processes answer in turn: name one of them, not what stands before"
            raise InvalidOptionError("url", self.engine, limit)
        self.model_name = chosen_model(scrapes[-1], model_name)
        self._scrapes = [_only(scrape, self.model_name) for scrape in scrapes]
        self.num_restarts = 0
        known = _sensible(self._scrapes[0])
        self._steps = [self._rises(known, *pair) for pair in pairwise(self._scrapes)]
        self._names = {key.name for scrape in self._scrapes for key in scrape.values}

    @property
    def num_scrapes(self) -> int:
        return len(self._scrapes)

    @property
    def duration_s(self) -> float:
        return self._scrapes[-1].time_s - self._scrapes[0].time_s

    @property
    def intervals_s(self) -> list[float]:
        """Seconds from each scrape to the next."""
        return [after.time_s - before.time_s for before, after in pairwise(self._scrapes)]

    @property
    def engines(self) -> list[str]:
        """The replicas that the server tells of."""
        return sorted({key.engine for key in self._scrapes[-1].values if key.engine})

    def has(self, name: str) -> bool:
        """Whether there is such a family: a gauge, a counter with `_total`, or a histogram."""
        return name in self._names or f"{name}_count" in self._names

    def increase(self, name: str, **labels: str) -> float | None:
        """How much a counter rose, all its series with these labels together; None: no such one."""
        if name not in self._names:
            return None
        return sum(self._rise(step, name, labels) for step in self._steps)

    def increases(self, name: str) -> list[float]:
        """How much a counter rose from each scrape to the next."""
        return [self._rise(step, name, {}) for step in self._steps]

    def distribution(self, name: str) -> Distribution | None:
        """What a histogram took in; None where there is no such histogram."""
        count = self.increase(f"{name}_count")
        if count is None:
            return None
        below: dict[float, float] = {}
        for step in self._steps:
            for key, rise in step.items():
                bound = _bound(key) if key.name == f"{name}_bucket" else None
                if bound is not None:
                    below[bound] = below.get(bound, 0.0) + rise
        return Distribution.of(count, self.increase(f"{name}_sum") or 0.0, below)

    def gauge(self, name: str, *, averaged: bool = False) -> Gauge | None:
        """A gauge's values, added up over the engines or averaged; None where none was seen."""
        seen = [self._values(scrape, name) for scrape in self._scrapes]
        points = [sum(v) / (len(v) if averaged else 1) for v in seen if v]
        if not points:
            return None
        return Gauge(sum(points) / len(points), min(points), max(points))

    def share_of_time(self, name: str, above: float = 0.0) -> float | None:
        """In which share of the scrapes a gauge, added up, was above a value."""
        seen = [self._values(scrape, name) for scrape in self._scrapes]
        points = [sum(v) for v in seen if v]
        return sum(p > above for p in points) / len(points) if points else None

    def last(self, name: str) -> Sequence[tuple[Mapping[str, str], float]]:
        """Labels and values of a gauge's series at the end, of all engines."""
        values = self._scrapes[-1].values.items()
        return [
            (dict(key.labels), value)
            for key, value in values
            if key.name == name and makes_sense(value)
        ]

    def info(self, name: str) -> Sequence[Mapping[str, str]]:
        """The labels of a family that tells its facts in labels, for each engine."""
        last = self._scrapes[-1].values
        return [dict(key.labels) for key in last if key.name == name]

    @staticmethod
    def _values(scrape: Scrape, name: str) -> list[float]:
        values = scrape.values.items()
        return [value for key, value in values if key.name == name and makes_sense(value)]

    @staticmethod
    def _rise(step: Mapping[Series, float], name: str, labels: Mapping[str, str]) -> float:
        wanted = labels.items()
        return sum(rise for key, rise in step.items() if key.name == name and wanted <= key.labels)

    def _rises(
        self, known: dict[Series, float], before: Scrape, after: Scrape
    ) -> dict[Series, float]:
        """By how much every cumulative series rose since it was known; `known` is brought up."""
        now = _sensible(after)
        begins = (before.started_s, after.started_s)
        anew = None not in begins and begins[0] != begins[1]
        fallen = {key.engine for key, value in now.items() if value < known.get(key, value)}
        self.num_restarts += anew or bool(fallen)
        # One that made no sense at first would seem to have counted all it has since then.
        unread = {key for key, value in before.values.items() if not makes_sense(value)}
        rises = {
            key: value - known.get(key, value if key in unread else 0.0)
            if not (anew or key.engine in fallen)
            else value
            for key, value in now.items()
        }
        known.update(now)
        return rises


def _bound(key: Series) -> float | None:
    """A bucket's upper end; None for one that cannot be."""
    try:
        bound = float(key.label("le") or "")
    except ValueError:
        return None
    return None if math.isnan(bound) or bound < 0 else bound


def _sensible(scrape: Scrape) -> dict[Series, float]:
    """Cumulative values that make sense."""
    values = scrape.values.items()
    return {key: value for key, value in values if key.is_cumulative and makes_sense(value)}


def chosen_model(scrape: Scrape, wanted: str | None) -> str:
    """The model that is named, or the only one there is.

    Raises `InvalidOptionError` where it is not there, or one has to be named.
    """
    names = scrape.model_names
    if wanted is not None:
        if wanted not in names:
            raise InvalidOptionError("served_model_name", wanted, f"one of {', '.join(names)}")
        return wanted
    if len(names) != 1:
        limit = f"tell which of {', '.join(names)}" if names else "no gauge tells of a model"
        raise InvalidOptionError("served_model_name", None, limit)
    return names[0]


def _only(scrape: Scrape, model_name: str) -> Scrape:
    """What is of one model, or of none in particular."""
    values = {k: v for k, v in scrape.values.items() if k.model_name in (model_name, "")}
    return Scrape(scrape.time_s, scrape.engine, values, scrape.started_s)
