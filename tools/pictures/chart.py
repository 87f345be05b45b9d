"""The chart of Pagoda beside its peers, from the table in `docs/performance.md`."""

from __future__ import annotations

from pictures.svg import box, drawing, text
from pictures.tables import rows_below

_COLUMNS = "| workload | seed |"
_NAMES = {"pagoda": "Pagoda", "openvino": "OpenVINO GenAI", "vllm": "vLLM"}
_STYLES = ("main", "other", "third")

_WIDTH = 880
_MARGIN = 24
_BARS_FROM, _BARS_WIDTH = 330, 480
_HEAD = 84
_BAR, _BAR_STEP, _GROUP_GAP = 16, 19, 16


def draw_chart() -> str:
    """Seconds of each engine for the first seed, each workload on a scale of its own."""
    head, *rows = rows_below("performance.md", _COLUMNS)
    engines = head[2 : head.index("best peer")]
    rows = [row for row in rows if row[1] == rows[0][1]]
    parts = [
        text(_MARGIN, 34, "Seconds for the same work: shorter is better", "title"),
        *_legend(engines),
    ]
    y = _HEAD
    for row in rows:
        seconds = {engine: float(cell) for engine, cell in zip(engines, row[2:], strict=False)}
        parts += _group(row[0], seconds, y)
        y += _BAR_STEP * len(engines) + _GROUP_GAP
    return drawing(_WIDTH, y + 8, "Pagoda beside other engines, in seconds", parts)


def _legend(engines: list[str]) -> list[str]:
    parts, x = [], _MARGIN
    for engine, style in zip(engines, _STYLES, strict=True):
        name = _NAMES[engine]
        parts += [box(x, 48, 12, 12, style, 2), text(x + 18, 58.5, name, "faint")]
        x += 18 + 7 * len(name) + 24
    note = "each workload on a scale of its own"
    return [*parts, text(_WIDTH - _MARGIN, 58.5, note, "faint end")]


def _group(workload: str, seconds: dict[str, float], y: float) -> list[str]:
    name, _, what = workload.partition(": ")
    parts = [text(_MARGIN, y + 25, name, "name"), text(_MARGIN, y + 43, what, "faint")]
    longest = max(seconds.values())
    for number, (engine, style) in enumerate(zip(seconds, _STYLES, strict=True)):
        top = y + number * _BAR_STEP
        width = round(_BARS_WIDTH * seconds[engine] / longest, 1)
        weight = "name" if style == "main" else "faint"
        parts += [
            box(_BARS_FROM, top, width, _BAR, style, 2),
            text(_BARS_FROM + width + 8, top + 12.5, f"{seconds[engine]:.2f}", weight),
        ]
    return parts
