"""Plans of models that are in the table."""

from __future__ import annotations

from typing import Any

from pagoda.planning.plan import make_plan
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Plan
from pagoda.planning.tables import find_model

GIB = 2**30
LLAMA_3_8B = "meta-llama/Llama-3.1-8B-Instruct"


def facts(name: str) -> ModelFacts:
    found = find_model(name)
    assert found is not None
    return ModelFacts.of_row(*found)


def plan(name: str, **options: Any) -> Plan:
    return make_plan(facts(name), PlanRequest(**options))
