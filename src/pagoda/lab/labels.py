"""Names beside points, so that none covers another, a point or a bar."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_CHARACTER_WIDTH = 6.6
"""Of text of 12 pixels, a little more than the mean."""
_HEIGHT = 14
_NEAR = 9
"""From a point to its name, where nothing is in the way."""
_STEP = 6
"""From one of the boxes that cover a line to the next."""
_RADII = (_NEAR, 18, 28, 40, 52, 66, 80)
_SOLID_COST, _THIN_COST = 1000, 8
"""In pixels that a name may rather stand away."""
_ANGLES = (0, 180, 270, 90, 315, 225, 45, 135, 290, 250, 70, 110)
"""In degrees, downwards from the right."""


class Box(NamedTuple):
    """A rectangle, in pixels from the upper left corner."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two have a place in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def is_within(self, other: Box) -> bool:
        """Whether all of it is in the other one."""
        return (
            other.left <= self.left
            and other.top <= self.top
            and self.right <= other.right
            and self.bottom <= other.bottom
        )


@dataclass(frozen=True, slots=True)
class Label:
    """A name that has found its place."""

    name: str
    box: Box
    leader: tuple[float, float] | None
    """Where a line from its point ends; None where it stands beside it."""
    distance: float
    """From its point, in pixels."""


class Named(NamedTuple):
    """A point with a name."""

    name: str
    x: float
    y: float


def place(
    points: Sequence[Named], solid: Sequence[Box], thin: Sequence[Box], bounds: Box
) -> list[Label]:
    """A label for each point, in their order, within `bounds` where there is room.

    Other labels and what is `solid` stay legible; what is `thin`, lines, is covered rather than
    that a name stands far from its point.
    """
    taken = list(solid)
    labels = []
    for point in points:
        candidates = list(_candidates(point))
        inside = [each for each in candidates if each.box.is_within(bounds)] or candidates
        label = min(inside, key=lambda each: _cost(each, taken, thin))
        labels.append(label)
        taken.append(label.box)
    return labels


def _cost(label: Label, solid: Sequence[Box], thin: Sequence[Box]) -> float:
    of_solid, of_thin = (sum(map(label.box.overlaps, boxes)) for boxes in (solid, thin))
    return of_solid * _SOLID_COST + of_thin * _THIN_COST + label.distance


def along(first: tuple[float, float], last: tuple[float, float]) -> list[Box]:
    """Small boxes that cover a line."""
    (x1, y1), (x2, y2) = first, last
    count = int(math.hypot(x2 - x1, y2 - y1) / _STEP) + 1
    places = ((x1 + (x2 - x1) * i / count, y1 + (y2 - y1) * i / count) for i in range(count + 1))
    half = _STEP / 2
    return [Box(x - half, y - half, x + half, y + half) for x, y in places]


def _candidates(point: Named) -> Iterator[Label]:
    """The nearest first."""
    width = _CHARACTER_WIDTH * len(point.name)
    for radius in _RADII:
        for angle in _ANGLES:
            across, down = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            # The side that faces the point stands at the radius.
            x, y = point.x + radius * across, point.y + radius * down
            middle = x + width / 2 * round(across)
            centre = y + (_HEIGHT / 2 if abs(across) < 0.5 else 0) * round(down)
            box = Box(
                middle - width / 2,
                centre - _HEIGHT / 2,
                middle + width / 2,
                centre + _HEIGHT / 2,
            )
            yield Label(point.name, box, None if radius == _NEAR else (x, y), radius)
