"""The page in a browser beside the planner: what both are asked, and that they say the same."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pagoda.errors import CapacityError, RefusedError
from pagoda.planning.alternatives import plan_with_alternatives
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Plan
from pagoda.planning.tables import model_rows
from server.browser import Tab

RELATIVE = 1e-9
UNLIKE = ("pipeline_parallel_size", "tiers")
"""Fields of a plan that the page words in its own way, or lacks."""
PLAN = """(request) => {
  const { tables, makePlan, alternatives, waysToFit, Refusal } = planner;
  try {
    const plan = makePlan(tables, request);
    return { ...plan, alternatives: alternatives(tables, request, plan) };
  } catch (refused) {
    if (!(refused instanceof Refusal)) throw refused;
    const { field, partial } = refused;
    const ways = partial ? waysToFit(tables, request) : [];
    return { refused: field, partial, ways: ways.map(({ flags }) => flags) };
  }
}"""


def open_at(tab: Tab, address: str) -> None:
    tab.go(address)
    tab.wait_for("!!globalThis.planner")


def facts(name: str) -> ModelFacts:
    return ModelFacts.of_row(name, model_rows()[name])


def plan(name: str, **options: Any) -> Plan:
    return plan_with_alternatives(facts(name), PlanRequest(**options))


def planned(choice: dict[str, Any]) -> Plan | RefusedError:
    try:
        request = PlanRequest(**{name: choice[name] for name in choice if name != "model"})
        return plan_with_alternatives(facts(choice["model"]), request)
    except RefusedError as error:
        return error


def require_the_planners(
    tab: Tab, choices: list[dict[str, Any]], expected: list[Plan | RefusedError]
) -> None:
    """The page shows the same figures, or refuses the same field."""
    shown = json.loads(tab.value(f"JSON.stringify({json.dumps(choices)}.map({PLAN}))"))
    for choice, answer, figures in zip(choices, expected, shown, strict=True):
        if isinstance(answer, Plan):
            assert "refused" not in figures, choice
            require_same(answer.as_json(), figures, str(choice))
        else:
            assert figures.get("refused") == answer.field, (choice, str(answer))
            if isinstance(answer, CapacityError):
                require_same_shortage(answer, figures)


def require_same(expected: Any, shown: Any, where: str) -> None:
    """Whole numbers and texts are equal, others within `RELATIVE`."""
    if type(expected) is dict:
        for name, value in expected.items():
            if name not in UNLIKE:
                assert name in shown, f"{where}.{name}"
                require_same(value, shown[name], f"{where}.{name}")
    elif type(expected) in (list, tuple):
        assert len(expected) == len(shown), where
        for place, (own, other) in enumerate(zip(expected, shown, strict=True)):
            require_same(own, other, f"{where}[{place}]")
    elif type(expected) is float:
        assert shown == pytest.approx(expected, rel=RELATIVE, abs=0), where
    else:
        assert shown == expected, where


def require_same_shortage(error: CapacityError, figures: dict[str, Any]) -> None:
    """What is missing, and what would help, stand in the planner's message."""
    if error.field == "model":
        missing = figures["partial"]["missing_bytes"] / 2**30
        assert f"so {missing:.2f} GiB are missing" in error.limit
    else:
        needed = figures["partial"]["sequence_bytes"] / 2**30
        assert f"({round(needed, 2)} GiB KV cache is needed" in error.limit
    certain = error.limit.partition("It certainly fits with ")[2].partition(";")[0]
    told = re.sub(r" \([^)]*\)", "", certain)
    assert figures["ways"] == (told.split(" or ") if told else [])
