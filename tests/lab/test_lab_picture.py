"""The picture: every method is named, where its figures say, and no name covers another."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

from pagoda.lab.change import Change
from pagoda.lab.labels import Box, Named, along, place
from pagoda.lab.method import FULL, Method
from pagoda.lab.picture import Point, draw, front_of
from pagoda.lab.quality import Quality, Reading
from pagoda.lab.report import LabReport, MethodReport
from pagoda.lab.scale import Scale, about_zero

SVG = "{http://www.w3.org/2000/svg}"
FIGURES = {
    "auto": (23040, 0.0, 0.0),
    "float32": (46080, -0.0001, 0.0002),
    "int8_per_token_head": (12240, 0.0014, 0.001),
    "fp8_per_token_head": (12240, 0.0056, 0.0044),
    "fp8_e4m3": (11520, 0.004, 0.006),
    "fp8_e5m2": (11520, 0.0106, 0.0248),
    "turboquant_4bit_nc": (8532, 0.0358, 0.0475),
    "int4_per_token_head": (6480, 0.0597, 0.05),
}


def quality(change: float, divergence: float) -> Quality:
    reading = Reading(20.0 * (1 + change), Change(change, change - 0.002, change + 0.002))
    return Quality(
        num_windows=16,
        num_tokens=16 * 1023,
        whole=reading,
        first=reading,
        last_half=reading,
        kl_mean=divergence,
        kl_p99=6 * divergence,
        top1=0.95,
    )


def report(**changes: object) -> LabReport:
    methods = tuple(
        MethodReport(
            FULL if name == "auto" else Method(name), size, size / 1440, quality(change, divergence)
        )
        for name, (size, change, divergence) in FIGURES.items()
    )
    fields = {
        "model": "A & B",
        "dtype": "bfloat16",
        "text": "a <text>",
        "window": 1024,
        "methods": methods,
        "noise_chunk": 32,
        "noise": quality(0.0, 0.0),
    }
    return LabReport(**(fields | changes))  # type: ignore[arg-type]


def drawn(of: LabReport) -> ElementTree.Element:
    picture = draw(of)
    assert picture is not None
    return ElementTree.fromstring(picture)


def test_every_method_is_named_in_both_panels_and_needs_nothing_from_elsewhere() -> None:
    picture = drawn(report())
    labels = [each.text for each in picture.iter(f"{SVG}text") if each.get("class") == "label"]
    assert sorted(labels) == sorted([*FIGURES, *(set(FIGURES) - {"auto"})])  # KL of auto is none
    text = draw(report()) or ""
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"(?:href|url)[=(]", text) == []


def test_points_stand_where_their_figures_say() -> None:
    tips = {}
    for circle in drawn(report()).iter(f"{SVG}circle"):
        name = (circle[0].text or "").split(":")[0]
        tips.setdefault(name, (float(circle.get("cx", "")), float(circle.get("cy", ""))))
    assert tips["int4_per_token_head"][0] < tips["fp8_e4m3"][0] < tips["auto"][0]
    assert tips["fp8_e4m3"][0] == tips["fp8_e5m2"][0]
    assert tips["int4_per_token_head"][1] < tips["fp8_e5m2"][1] < tips["fp8_e4m3"][1]
    halved = tips["auto"][0] - tips["fp8_e4m3"][0]
    assert tips["float32"][0] - tips["auto"][0] == pytest.approx(halved, abs=0.2)


def test_a_run_without_quality_has_no_picture() -> None:
    nothing = tuple(
        MethodReport(each.method, each.bytes_per_token, each.bits_per_number)
        for each in report().methods
    )
    assert draw(report(methods=nothing, noise=None)) is None


def test_a_run_of_the_full_cache_alone_is_drawn() -> None:
    assert draw(report(methods=report().methods[:1])) is not None


def test_the_front_is_what_nothing_smaller_beats() -> None:
    points = [
        Point(name, size, change, change, change, name == "auto")
        for name, (size, change, _) in FIGURES.items()
    ]
    names = [point.name for point in front_of(points, 23040)]
    expected = ["int4_per_token_head", "turboquant_4bit_nc", "fp8_e4m3", "int8_per_token_head"]
    assert names == expected


def test_names_of_a_crowd_cover_neither_one_another_nor_points() -> None:
    points = [Named(f"method_number_{n}", 300 + 9 * (n % 4), 200 + 8 * (n // 4)) for n in range(12)]
    dots = [Box(x - 5, y - 5, x + 5, y + 5) for _, x, y in points]
    bounds = Box(0, 0, 700, 400)
    boxes = [label.box for label in place(points, dots, [], bounds)]
    assert all(box.is_within(bounds) for box in boxes)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert not any(box.overlaps(dot) for box in boxes for dot in dots)


def test_a_name_moves_away_from_a_line_beside_its_point() -> None:
    point = Named("name", 100.0, 100.0)
    (free,) = place([point], [], [], Box(0, 0, 300, 300))
    assert free.leader is None
    line = along((105.0, 60.0), (105.0, 140.0))
    (moved,) = place([point], [], line, Box(0, 0, 300, 300))
    assert not any(map(moved.box.overlaps, line))


def test_a_scale_is_even_near_zero_and_by_powers_far_from_it() -> None:
    scale = Scale(about_zero, -0.5, 0.5, 0.0, 100.0)
    assert scale(0.0) == pytest.approx(50.0)
    assert scale(0.5) == 100.0
    small, large = scale(0.0002) - scale(0.0001), scale(0.0003) - scale(0.0002)
    assert small == pytest.approx(large, rel=0.05)
    assert scale(0.3) - scale(0.1) == pytest.approx(scale(0.1) - scale(0.1 / 3), rel=0.05)
    assert list(scale.changes()) == sorted(scale.changes())
    assert 0.0 in scale.changes()
    assert list(Scale(about_zero, 0.0005, 0.2, 0, 1).powers()) == pytest.approx([0.001, 0.01, 0.1])
