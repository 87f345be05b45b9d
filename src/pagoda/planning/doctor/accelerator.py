"""What an accelerator's memory and arithmetic could do, from the planner's table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from typing import Any

from pagoda.errors import InvalidOptionError


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator at its best."""

    bandwidth: float
    """Bytes a second."""
    intensity: float | None
    """Operations in bfloat16 for each byte that it reads."""


def find_accelerator(name: str) -> Accelerator:
    """The accelerator of that name or alias, in whatever case.

    Raises `InvalidOptionError` naming the nearest ones.
    """
    table = _table()
    names = {
        alias.casefold(): row for key, row in table.items() for alias in (key, *row["aliases"])
    }
    row = names.get(name.strip().casefold())
    if row is None:
        near = get_close_matches(name, table, cutoff=0.3) or sorted(table)
        limit = f"not in the table: give --bandwidth, or one of {', '.join(near) or 'none'}"
        raise InvalidOptionError("gpu", name, limit)
    bandwidth = row["bandwidth_gb_s"] * 1e9
    tflops = row.get("bf16_tflops")
    return Accelerator(bandwidth, tflops * 1e12 / bandwidth if tflops else None)


def _table() -> dict[str, Any]:
    path = resources.files("pagoda.planning") / "tables" / "accelerators.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
