"""`pagoda plan --html`: the interactive page, opened with what the command chose."""

from __future__ import annotations

from pathlib import Path

import typer

from pagoda.calculator.page import PlannedChoice, plan_page
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.planning.alternatives import plan_with_alternatives
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Plan


def plan_with_page(
    facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None, path: Path, typed: str
) -> Plan:
    """The plan with its alternatives, written to `path` as a page: also where it does not fit.

    `typed` is what the model was called in the command.
    Raises as `plan_with_alternatives`, the page of a `CapacityError` being written first.
    """
    try:
        plan = plan_with_alternatives(facts, request, draft)
    except CapacityError as error:
        write_page(path, PlannedChoice(facts, request, draft, None, error.limit, typed))
        raise
    write_page(path, PlannedChoice(facts, request, draft, plan, typed=typed))
    return plan


def write_page(path: Path, planned: PlannedChoice | None = None) -> None:
    """Write the page, which takes seconds; `InvalidOptionError` where that cannot be."""
    typer.echo(f"writing the page {path}", err=True)
    page = plan_page(planned)
    try:
        path.write_text(page, "utf-8", errors="replace")  # a model's name may be no text
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOptionError("html", str(path), f"cannot be written: {reason}") from error
