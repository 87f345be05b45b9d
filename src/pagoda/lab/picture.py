"""The picture of a run: what each method costs, over the bytes that it takes.

perplexity, change   | noise floor, points with the intervals of their changes
KL(full ‖ method)    | points of the mean, with a bar up to the 99th percentile
                     +-- bytes a token, as allocated; how many times as many tokens fit
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pagoda.cache.formats import FLOAT_DTYPES
from pagoda.lab import svg
from pagoda.lab.labels import Box, Named, along, place
from pagoda.lab.quality import Quality
from pagoda.lab.report import LabReport
from pagoda.lab.scale import Scale, about_zero

_WIDTH, _HEIGHT = 920, 800
_LEFT, _RIGHT = 76, _WIDTH - 28
_CHANGE_TOP, _CHANGE_BOTTOM = 112, 440
_KL_TOP, _KL_BOTTOM = 488, 722
_RATIOS = (0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
_RADIUS = 4.5
_MARGIN = 1.25
"""Between the ends of the axis and the smallest and the largest cache, as a ratio."""
_NOTE_WIDTH = 190


@dataclass(frozen=True, slots=True)
class Point:
    """One method in a panel: a value, and the ends of its bar."""

    name: str
    num_bytes: float
    value: float
    low: float
    high: float
    is_full: bool

    def beats(self, other: Point) -> bool:
        """No worse in bytes and in value, and not the same."""
        own, others = (self.num_bytes, self.value), (other.num_bytes, other.value)
        return own != others and own[0] <= others[0] and own[1] <= others[1]


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the two, with what is drawn into it."""

    title: str
    points: Sequence[Point]
    front: Sequence[Point]
    """Of those smaller than the full cache, the ones that none beats, the smallest first."""
    x: Scale
    y: Scale
    ticks: Sequence[tuple[float, str]]
    noise: tuple[float, float] | None
    """The values between which nothing can be told; None where nothing is known of that."""

    def parts(self) -> list[str]:
        """Elements of the drawing, the lowest first."""
        return [
            svg.text(_LEFT, self.y.stop - 12, self.title, "head"),
            *self._noise(),
            *self._grid(),
            svg.polyline([self._place(each) for each in self.front], "front"),
            *(part for each in self.points for part in self._bar(each)),
            *map(self._dot, self.points),
            *self._labels(),
        ]

    def _place(self, point: Point) -> tuple[float, float]:
        return self.x(point.num_bytes), self.y(point.value)

    def _noise(self) -> list[str]:
        if self.noise is None:
            return []
        low, high = (self.y(each) for each in self.noise)
        low = min(low, self.y.start)
        note = svg.text(_LEFT + 6, high - 5, "noise floor of the full cache", "faint")
        return [svg.box(_LEFT, high, _RIGHT - _LEFT, low - high, "noise"), note]

    def _grid(self) -> list[str]:
        parts = []
        for value, name in self.ticks:
            y = self.y(value)
            parts.append(svg.line(_LEFT, y, _RIGHT, y, "axis" if value == 0 else "grid"))
            parts.append(svg.text(_LEFT - 8, y + 4, name, "faint end"))
        return parts

    def _style(self, point: Point) -> str:
        if point.is_full:
            return "full"
        return "best" if point in self.front else "rest"

    def _bar(self, point: Point) -> list[str]:
        x, low, high = self.x(point.num_bytes), self.y(point.low), self.y(point.high)
        if low - high < 2 * _RADIUS:
            return []
        style = self._style(point)
        ends = (high,) if point.low == point.value else (low, high)
        return [
            svg.line(x, low, x, high, style),
            *(svg.line(x - 4, end, x + 4, end, style) for end in ends),
        ]

    def _dot(self, point: Point) -> str:
        tip = f"{point.name}: {point.num_bytes:,.0f} bytes a token, {point.value:.4g}"
        return svg.dot(*self._place(point), _RADIUS, self._style(point), tip)

    def _labels(self) -> list[str]:
        named = [Named(point.name, *self._place(point)) for point in self.points]
        bounds = Box(_LEFT + 2, self.y.stop, _RIGHT - 2, self.y.start)
        dots = [Box(x - 6, y - 6, x + 6, y + 6) for _, x, y in named]
        parts = []
        labels = place(named, [*dots, *self._note()], self._lines(), bounds)
        for point, label in zip(named, labels, strict=True):
            if label.leader is not None:
                parts.append(svg.line(point.x, point.y, *label.leader, "leader"))
            middle = (label.box.left + label.box.right) / 2
            parts.append(svg.text(middle, label.box.bottom - 3, label.name, "label"))
        return parts

    def _note(self) -> list[Box]:
        """The place of the words on noise."""
        if self.noise is None:
            return []
        y = self.y(self.noise[1])
        return [Box(_LEFT, y - 18, _LEFT + _NOTE_WIDTH, y)]

    def _lines(self) -> list[Box]:
        """Bars and the front."""
        bars = [
            Box(x - 5, self.y(point.high), x + 5, self.y(point.low))
            for point, x in ((point, self.x(point.num_bytes)) for point in self.points)
        ]
        front = [self._place(point) for point in self.front]
        return [*bars, *(box for ends in pairwise(front) for box in along(*ends))]


def draw(report: LabReport) -> str | None:
    """The picture as SVG; None where no quality was measured."""
    if report.full.quality is None:
        return None
    x = _bytes_scale(report)
    quality = report.full.quality
    told = (
        f"{report.model} in {report.dtype} · {report.text} · {quality.num_windows} windows of "
        f"{report.window:,} tokens"
    )
    advice = "Lower and further left is better; green: none is smaller and better at once."
    parts = [
        svg.text(24, 34, "What a smaller cache costs", "title"),
        svg.text(24, 56, told, "faint"),
        svg.text(24, 74, advice, "faint"),
        *_bytes_axis(report, x),
        *_change_panel(report, x).parts(),
        *_divergence_panel(report, x).parts(),
    ]
    return svg.drawing(_WIDTH, _HEIGHT, "Quality of caches over their bytes a token", parts)


def front_of(points: Sequence[Point], num_bytes: float) -> list[Point]:
    """Of those below `num_bytes`, the points that none beats, the smallest first."""
    smaller = [each for each in points if each.num_bytes < num_bytes]
    best = (each for each in smaller if not any(other.beats(each) for other in smaller))
    return sorted(best, key=lambda each: each.num_bytes)


def _bytes_scale(report: LabReport) -> Scale:
    sizes = [each.bytes_per_token for each in report.methods]
    return Scale(math.log, min(sizes) / _MARGIN, max(sizes) * _MARGIN, _LEFT, _RIGHT)


def _bytes_axis(report: LabReport, x: Scale) -> list[str]:
    full = report.full.bytes_per_token
    parts = []
    for ratio in _RATIOS:
        if not x.holds(full / ratio):
            continue
        place = x(full / ratio)
        for top, bottom in ((_CHANGE_TOP, _CHANGE_BOTTOM), (_KL_TOP, _KL_BOTTOM)):
            parts.append(svg.line(place, top, place, bottom, "grid"))
        parts.append(svg.text(place, _KL_BOTTOM + 18, f"{full / ratio:,.0f}", "faint middle"))
        parts.append(svg.text(place, _KL_BOTTOM + 34, f"{ratio:g} ×", "faint middle"))
    caption = "bytes a token, as allocated; × as many tokens in the same memory"
    return [*parts, svg.text((_LEFT + _RIGHT) / 2, _KL_BOTTOM + 58, caption, "faint middle")]


def _change_panel(report: LabReport, x: Scale) -> Panel:
    points = [
        Point(str(each.method), each.bytes_per_token, *_change(each.quality), each is report.full)
        for each in report.methods
        if each.quality is not None
    ]
    noise = max((abs(each.whole.change.mean) for each in _noise_of(report)), default=0.0)
    low = min([-noise, *(point.low for point in points)])
    high = max(0.01, *(point.high for point in points))
    y = Scale(about_zero, low - 0.001, high * 1.25, _CHANGE_BOTTOM, _CHANGE_TOP)
    return Panel(
        title="Perplexity, change by the full cache; bars: 95% of draws of as many windows",
        points=points,
        front=front_of(points, report.full.bytes_per_token),
        x=x,
        y=y,
        ticks=[(each, f"{each:+.1%}" if each else "0") for each in y.changes()],
        noise=(-noise, noise) if noise else None,
    )


def _divergence_panel(report: LabReport, x: Scale) -> Panel:
    points = [
        Point(
            str(each.method),
            each.bytes_per_token,
            each.quality.kl_mean,
            each.quality.kl_mean,
            each.quality.kl_p99,
            is_full=False,
        )
        for each in report.methods
        if each.quality is not None and each.quality.kl_mean > 0
    ]
    noise = max((each.kl_mean for each in _noise_of(report)), default=0.0)
    values = [each for point in points for each in (point.value, point.high)] or [1e-4, 1e-1]
    y = Scale(math.log10, min(values) / 2, max(values) * 1.5, _KL_BOTTOM, _KL_TOP)
    return Panel(
        title="KL(full ‖ method) in nats; points: the mean, bars: up to the 99th percentile",
        points=points,
        front=front_of(points, report.full.bytes_per_token),
        x=x,
        y=y,
        ticks=[(each, f"{each:g}") for each in y.powers()],
        noise=(y.low, noise) if noise >= y.low else None,
    )


def _change(quality: Quality) -> tuple[float, float, float]:
    return quality.whole.change


def _noise_of(report: LabReport) -> list[Quality]:
    """What is no codec's doing: the full cache in other chunks, and in another plain dtype."""
    plain = [
        each.quality
        for each in report.methods
        if each.method.kv_cache_dtype in FLOAT_DTYPES and each.quality is not None
    ]
    return plain if report.noise is None else [report.noise, *plain]
