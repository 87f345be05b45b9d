"""Elements of a drawing that is legible on light and on dark pages."""

from __future__ import annotations

from html import escape

# The colours of the pages.
_STYLE = """
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #23211c }
.title { font: 600 17px Georgia, "Times New Roman", serif }
.name { font-weight: 600 }
.faint { font-size: 12px; fill: #656055 }
.end { text-anchor: end }
.middle { text-anchor: middle }
.card { fill: #fbfaf7; stroke: #dedad0 }
.box { fill: #ffffff; stroke: #cbc5b8 }
.planned { fill: none; stroke: #8b867a; stroke-dasharray: 4 3 }
.main { fill: #17705a }
.other { fill: #a19b8d }
.third { fill: #cbc5b8 }
@media (prefers-color-scheme: dark) {
  text { fill: #eae7df }
  .faint { fill: #a8a295 }
  .card { fill: #171613; stroke: #36342d }
  .box { fill: #262520; stroke: #4d4a41 }
  .planned { stroke: #817c70 }
  .main { fill: #63c7a6 }
  .other { fill: #817c70 }
  .third { fill: #4d4a41 }
}
"""


def drawing(width: int, height: int, title: str, parts: list[str]) -> str:
    """A whole drawing on a card of its own; `title` is what a screen reader says."""
    card = box(0.5, 0.5, width - 1, height - 1, "card", 8)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            card,
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, content: str, style: str = "") -> str:
    """One line; `y` is where its letters stand."""
    return f'<text class="{style}" x="{x:.6g}" y="{y:g}">{escape(content)}</text>'


def box(x: float, y: float, width: float, height: float, style: str, radius: float = 4) -> str:
    return (
        f'<rect class="{style}" x="{x:.6g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'rx="{radius:g}"/>'
    )


def path(points: str, style: str) -> str:
    return f'<path class="{style}" d="{points}"/>'
