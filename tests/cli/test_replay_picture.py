"""The picture of a replay: all that is written stands on it, and it is XML."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from pagoda.cli.replay_picture import Curve, draw

SVG = "{http://www.w3.org/2000/svg}"
NARROW_LETTER = 5


def test_many_curves_and_a_long_name_stand_on_the_card() -> None:
    curves = [Curve(f"policy {number}", [(100, 0.1), (200, 0.2)]) for number in range(60)]
    trace = "x" * 200
    picture = ElementTree.fromstring(draw(trace, curves))
    width, height = map(float, picture.get("viewBox", "").split()[2:])
    texts = {element.text or "": element for element in picture.iter(f"{SVG}text")}
    assert sum(name.startswith("policy") for name in texts) == 60
    for name, element in texts.items():
        assert float(element.get("y", "")) < height, name
        if "end" not in element.get("class", "") and "middle" not in element.get("class", ""):
            assert float(element.get("x", "")) + NARROW_LETTER * len(name) < width, name


def test_few_curves_leave_the_card_as_it_is() -> None:
    picture = ElementTree.fromstring(draw("day", [Curve("lru", [(100, 0.1)])]))
    assert picture.get("viewBox") == "0 0 820 470"


def test_a_name_with_control_characters_is_xml() -> None:
    curve = Curve("a\x1bb", [(100, 0.1)])
    picture = ElementTree.fromstring(draw("<\x01\x1b[31m&\uffff>", [curve]))
    told = [element.text for element in picture.iter(f"{SVG}text")]
    assert "<��[31m&�>" in told
    assert "a�b, 10.0%" in told
