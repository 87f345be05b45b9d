"""The picture of a replay: hit rate over pool sizes, a line a policy, and the bound above them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, pairwise

from pagoda.cli.replay_report import cache_of, name_of
from pagoda.lab import svg
from pagoda.lab.scale import Scale
from pagoda.replay.schedule_what_if import ScheduleAnswer
from pagoda.replay.what_if import CacheAnswer

_WIDTH, _HEIGHT = 820, 470
"""At least."""
_EDGE = 24
"""Left free around what is written."""
_LEFT, _RIGHT = 64, _WIDTH - 170
_TOP, _BOTTOM = 92, 400
_RADIUS = 4
_LETTER = 7
"""Of a name, on the average and rounded up."""
_MARGIN = 1.15
"""Between the ends of the axis and the smallest and the largest pool, as a ratio."""
_LINE_HEIGHT = 15
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True)
class Curve:
    """Hit rates over pool sizes, in tokens."""

    name: str
    points: Sequence[tuple[int, float]]
    """Tokens of the pool and share found, the smallest pool first."""
    is_bound: bool = False

    @staticmethod
    def all_of(answers: Sequence[CacheAnswer | ScheduleAnswer]) -> list[Curve]:
        """A curve for each policy, block size and scheduler, and the bound of each block size."""
        found: defaultdict[str, dict[int, float]] = defaultdict(dict)
        bounds: defaultdict[str, dict[int, float]] = defaultdict(dict)
        has_sizes = len({cache_of(answer).block_size for answer in answers}) > 1
        for answer, scheduler in zip(answers, _schedulers_apart(answers), strict=True):
            cache = cache_of(answer)
            size = f", blocks of {cache.block_size}" if has_sizes else ""
            num_tokens = cache.num_blocks * cache.block_size
            found[name_of(cache) + size + scheduler][num_tokens] = answer.outcome.hit_rate
            if answer.optimum is not None:
                bounds[f"knowing all{size}"][num_tokens] = answer.optimum.hit_rate
        return [
            *(Curve(name, sorted(each.items()), is_bound=True) for name, each in bounds.items()),
            *(Curve(name, sorted(each.items())) for name, each in found.items()),
        ]


def _schedulers_apart(answers: Sequence[CacheAnswer | ScheduleAnswer]) -> list[str]:
    """Of each answer those figures of its scheduler in which the answers differ."""
    each = [_scheduler_of(answer) for answer in answers]
    differing = [len(set(column)) > 1 for column in zip(*each, strict=True)]
    return ["".join(f", {figure}" for figure in compress(one, differing)) for one in each]


def _scheduler_of(answer: CacheAnswer | ScheduleAnswer) -> tuple[str, ...]:
    if not isinstance(answer, ScheduleAnswer):
        return ()
    scheduler = answer.setting.scheduler
    tokens, seats = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    return (f"{tokens:,} tokens a step", f"{seats:,} seats")


def draw(trace: str, curves: Sequence[Curve]) -> str:
    """The picture as SVG."""
    sizes = sorted({size for curve in curves for size, _ in curve.points})
    x = Scale(math.log, sizes[0] / _MARGIN, sizes[-1] * _MARGIN, _LEFT, _RIGHT)
    top = max(0.01, *(rate for curve in curves for _, rate in curve.points))
    y = Scale(float, 0.0, top * 1.1, _BOTTOM, _TOP)
    parts = [
        svg.text(_EDGE, 34, "What a pool of a size finds", "title"),
        svg.text(_EDGE, 56, trace, "faint"),
        svg.text(_LEFT, _TOP - 12, "Hit rate: tokens found of those asked for", "head"),
        *_rates(y),
        *_sizes(sizes, x),
    ]
    ends = []
    for number, curve in enumerate(curves):
        style = "axis" if curve.is_bound else _style(number, curves)
        places = [(x(size), y(rate)) for size, rate in curve.points]
        parts += [svg.line(*one, *other, style) for one, other in pairwise(places)]
        for (size, rate), place in zip(curve.points, places, strict=True):
            tip = f"{curve.name}: {size:,} tokens, {rate:.1%}"
            parts.append(svg.dot(*place, _RADIUS, "full" if curve.is_bound else style, tip))
        ends.append((places[-1][1], curve))
    names = _names(ends)
    parts += names.values()
    width = max(
        _WIDTH,
        _EDGE + _LETTER * len(trace) + _EDGE,
        _RIGHT + 10 + _LETTER * max(len(_label(curve)) for curve in curves) + 10,
    )
    height = max(_HEIGHT, max(names) + _EDGE)
    return svg.drawing(width, height, "Hit rate over the size of the pool", parts)


def _style(number: int, curves: Sequence[Curve]) -> str:
    """The policy that finds most in the largest pool stands out."""
    own = [curve for curve in curves if not curve.is_bound]
    return "best" if curves[number] is max(own, key=lambda curve: curve.points[-1][1]) else "rest"


def _names(ends: list[tuple[float, Curve]]) -> dict[float, str]:
    """Beside the ends of the lines, one below another: by where their letters stand."""
    parts, below = {}, -math.inf
    for at, curve in sorted(ends, key=lambda end: end[0]):
        below = max(at + 4, below + _LINE_HEIGHT)
        style = "faint" if curve.is_bound else ""
        parts[below] = svg.text(_RIGHT + 10, below, _label(curve), style)
    return parts


def _label(curve: Curve) -> str:
    return f"{curve.name}, {curve.points[-1][1]:.1%}"


def _rates(y: Scale) -> list[str]:
    step = next((each for each in _STEPS if y.high / each <= 8), 0.25)
    parts = []
    for number in range(int(y.high / step) + 1):
        at = y(number * step)
        parts.append(svg.line(_LEFT, at, _RIGHT, at, "grid" if number else "axis"))
        parts.append(svg.text(_LEFT - 8, at + 4, f"{number * step:.0%}", "faint end"))
    return parts


def _sizes(sizes: Sequence[int], x: Scale) -> list[str]:
    parts, right = [], -math.inf
    for size in sizes:
        at = x(size)
        parts.append(svg.line(at, _TOP, at, _BOTTOM, "grid"))
        name = f"{size:,}"
        if at - 4 * len(name) > right:
            parts.append(svg.text(at, _BOTTOM + 18, name, "faint middle"))
            right = at + 4 * len(name)
    caption = "tokens of the pool"
    return [*parts, svg.text((_LEFT + _RIGHT) / 2, _BOTTOM + 44, caption, "faint middle")]
