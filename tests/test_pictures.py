"""The drawings are what the tables say; `make pictures` makes them anew."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from pictures import tables
from pictures.__main__ import DRAWINGS, FOLDER
from pictures.chart import draw_chart
from pictures.house import draw_house, rooms

README = FOLDER.parent.parent / "README.md"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_as_its_table_makes_it(name: str) -> None:
    assert (FOLDER / name).read_text() == DRAWINGS[name](), "run `make pictures`"


def test_every_room_is_drawn_with_its_floor() -> None:
    shown = [element.text for element in ElementTree.fromstring(draw_house()).iter(f"{SVG}text")]
    assert all(room.name in shown for room in rooms())
    assert all(str(room.floor) in shown for room in rooms())
    dashed = re.findall(r'class="planned"', draw_house())
    assert len(dashed) == sum(room.is_planned for room in rooms())


def test_bars_are_as_long_as_their_seconds() -> None:
    bars = [
        float(element.get("width", ""))
        for element in ElementTree.fromstring(draw_chart()).iter(f"{SVG}rect")
        if element.get("height") == "16"
    ]
    head, first, *_ = tables.rows_below("performance.md", "| workload | seed |")
    engines = head[2 : head.index("best peer")]
    seconds = [float(cell) for cell in first[2 : 2 + len(engines)]]
    assert len(seconds) == 3
    for bar, each in zip(bars, seconds, strict=False):
        assert bar / bars[0] == pytest.approx(each / seconds[0], abs=0.01)


def test_a_table_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"docs/rooms\.md has no table that begins with \| room"):
        tables.rows_below("rooms.md", "| room |")


def test_the_readme_shows_every_picture_and_none_is_large() -> None:
    shown = set(re.findall(r"docs/pictures/([\w.]+)", README.read_text()))
    assert shown == {path.name for path in FOLDER.iterdir()}
    assert all(path.stat().st_size < 150_000 for path in FOLDER.iterdir())
