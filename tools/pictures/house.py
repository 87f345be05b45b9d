"""The drawing of the house: rooms by floor, from the table in `docs/rooms.md`."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from itertools import groupby, pairwise

from pictures.svg import box, drawing, path, text
from pictures.tables import plain, rows_below

_COLUMNS = "| floor | room |"

_WIDTH = 880
_HEAD = 66
_LOWEST_WIDTH, _NARROWER = 780, 36
"""Width of the lowest floor, and by how much each one above it is narrower."""
_ROOF, _EAVES = 20, 26
_GAP = 8
_ROOMS_IN_A_ROW = 5
_NAME_LINE, _LINE, _PADDING = 20, 14, 12
_LETTER = 6.4
"""The mean width of a letter of a room's text."""


@dataclass(frozen=True)
class Room:
    floor: int
    name: str
    what: str
    is_planned: bool


def rooms() -> list[Room]:
    """In the order of the table, lowest floor first."""
    _, *rows = rows_below("rooms.md", _COLUMNS)
    return [
        Room(int(floor), plain(name), _shortened(plain(what)), name.startswith("*"))
        for floor, name, what, *_ in rows
    ]


def draw_house() -> str:
    """A pagoda: one tier for each floor, the lowest at the bottom."""
    floors = [(floor, list(found)) for floor, found in groupby(rooms(), lambda room: room.floor)]
    parts = [
        text(24, 34, "The house", "title"),
        text(24, 54, "a room imports only from lower floors; dashed rooms are planned", "faint"),
        path(f"M{_WIDTH / 2 - 3} {_HEAD + 2} l3 -40 l3 40 z", "main"),
    ]
    y: float = _HEAD
    for floor, found in reversed(floors):
        width = _LOWEST_WIDTH - _NARROWER * floor
        parts += _roof(width, y)
        y += _ROOF + _GAP
        parts.append(text((_WIDTH - width) / 2 - 18, y + _NAME_LINE, str(floor), "faint middle"))
        for row in _in_rows(found):
            drawn, height = _row(row, width, y)
            parts += drawn
            y += height + _GAP
    return drawing(_WIDTH, int(y) + 16, "The rooms of Pagoda by floor", parts)


def _shortened(what: str) -> str:
    """The first clause."""
    return re.split(r"[:;]", what)[0]


def _in_rows(found: list[Room]) -> list[list[Room]]:
    """Rows of nearly the same number of rooms."""
    num_rows = -(-len(found) // _ROOMS_IN_A_ROW)
    ends = [len(found) * number // num_rows for number in range(num_rows + 1)]
    return [found[start:end] for start, end in pairwise(ends)]


def _roof(width: float, y: float) -> list[str]:
    """A roof with raised eaves over a floor of `width`; `y` is its ridge."""
    left, right = (_WIDTH - width) / 2 - _EAVES, (_WIDTH + width) / 2 + _EAVES
    ridge = width * 0.3
    middle, bottom = _WIDTH / 2, y + _ROOF
    curve = (
        f"M{middle - ridge:g} {y:g} Q{left + 60:g} {bottom - 4:g} {left:g} {bottom - 8:g} "
        f"Q{left + 18:g} {bottom:g} {left + 34:g} {bottom:g} H{right - 34:g} "
        f"Q{right - 18:g} {bottom:g} {right:g} {bottom - 8:g} "
        f"Q{right - 60:g} {bottom - 4:g} {middle + ridge:g} {y:g} Z"
    )
    return [path(curve, "main")]


def _row(found: list[Room], width: float, y: float) -> tuple[list[str], float]:
    """Rooms side by side, and how high they are: as the one that has most to say."""
    each = (width - _GAP * (len(found) - 1)) / len(found)
    letters = int((each - 2 * _PADDING) / _LETTER)
    said = [textwrap.wrap(room.what, letters, max_lines=4, placeholder=" …") for room in found]
    height = _NAME_LINE + _LINE * max(map(len, said)) + _PADDING
    parts = []
    for number, (room, lines) in enumerate(zip(found, said, strict=True)):
        x = (_WIDTH - width) / 2 + number * (each + _GAP)
        parts.append(box(x, y, each, height, "planned" if room.is_planned else "box"))
        parts.append(text(x + _PADDING, y + _NAME_LINE, room.name, "name"))
        for place, line in enumerate(lines, start=1):
            parts.append(text(x + _PADDING, y + _NAME_LINE + 2 + _LINE * place, line, "faint"))
    return parts, height
