"""The tour tells the life of a step as the engine's code has it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pagoda.engine.core import Engine

TOUR = Path(__file__).parents[2] / "docs" / "tour.md"
LAUNCH = (Engine._schedule, Engine._launch)
CONCLUDE = (Engine._conclude, Engine._settle, Engine._progress)
PARTS = (Engine.advance, *LAUNCH, *CONCLUDE, Engine._tell)


def calls_of_the_tour() -> list[str]:
    """The names of the calls in the block that begins the section."""
    _, _, section = TOUR.read_text().partition("## The life of a step\n")
    block = re.search(r"(?:^    .+\n)+", section, re.MULTILINE)
    assert block is not None, "the section has no code"
    return re.findall(r"^    (?:\w+ += )?([\w.]+)\(", block[0], re.MULTILINE)


def test_the_tour_names_the_calls_of_a_step_in_their_order() -> None:
    calls = calls_of_the_tour()
    assert len(calls) == 6
    step = inspect.getsource(Engine.advance)
    order = [step.index(f"self.{part}(") for part in ("_launch", "_conclude", "_tell")]
    assert order == sorted(order)
    flow = "".join(inspect.getsource(part) for part in (*LAUNCH, Engine._conclude)) + step
    places = [flow.find(f"{call}(") for call in calls]
    assert -1 not in places, calls[places.index(-1)]
    assert places == sorted(places)


def test_a_step_with_all_its_parts_fits_on_a_page() -> None:
    num_lines = sum(len(inspect.getsource(part).splitlines()) for part in PARTS)
    assert num_lines <= 90
    assert len(inspect.getsource(Engine.advance).splitlines()) <= 20
