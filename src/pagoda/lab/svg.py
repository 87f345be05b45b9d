"""Elements of a drawing that is legible on light and on dark pages, and needs nothing beside it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_STYLE = """
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #23211c }
.title { font: 600 17px Georgia, "Times New Roman", serif }
.head { font-weight: 600 }
.faint { fill: #656055 }
.end { text-anchor: end }
.middle { text-anchor: middle }
.label { text-anchor: middle; stroke: #fbfaf7; stroke-width: 3; paint-order: stroke }
.card { fill: #fbfaf7; stroke: #dedad0 }
.grid { stroke: #e6e2d8 }
.axis { stroke: #a19b8d }
.noise { fill: #efebe0 }
.leader { stroke: #a19b8d }
.best { fill: #17705a; stroke: #17705a }
.rest { fill: #8b867a; stroke: #8b867a }
.full { fill: #fbfaf7; stroke: #23211c; stroke-width: 2 }
.front { fill: none; stroke: #17705a; stroke-width: 1.5; stroke-opacity: 0.45 }
@media (prefers-color-scheme: dark) {
  text { fill: #eae7df }
  .faint { fill: #a8a295 }
  .label { stroke: #171613 }
  .card { fill: #171613; stroke: #36342d }
  .grid { stroke: #2c2a25 }
  .axis { stroke: #6b675d }
  .noise { fill: #25231e }
  .leader { stroke: #817c70 }
  .best { fill: #63c7a6; stroke: #63c7a6 }
  .rest { fill: #9a9587; stroke: #9a9587 }
  .full { fill: #171613; stroke: #eae7df }
  .front { stroke: #63c7a6 }
}
"""


def drawing(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """A whole drawing on a card of its own; `title` is what a screen reader says."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" role="img" aria-label="{_escaped(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" '
            'rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, content: str, style: str = "") -> str:
    """One line; `y` is where its letters stand."""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{_escaped(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """From one point to another."""
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def polyline(points: Sequence[tuple[float, float]], style: str) -> str:
    """Through points, in their order."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{style}" points="{places}"/>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    """A rectangle; `x` and `y` are its upper left corner."""
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    )


def dot(x: float, y: float, radius: float, style: str, tip: str) -> str:
    """A circle that says `tip` where a pointer rests on it."""
    circle = f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">'
    return f"{circle}<title>{_escaped(tip)}</title></circle>"


def _escaped(content: str) -> str:
    """As XML has it, which knows no control characters: a sign for each of them."""
    return html.escape(_NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", content))
