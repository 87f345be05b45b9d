"""Costs of steps, found again from what a benchmark would have measured of them."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from pagoda.errors import InvalidOptionError
from pagoda.replay.step_cost import LinearCost
from pagoda.replay.step_fit import _measured, fitted, read_cost

SETTING = {
    "seed": 1,
    "num_blocks": 4000,
    "block_size": 16,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 64,
    "best_seconds": 1.0,
    "time_to_first_token": 1.0,
}


def benched(cost: LinearCost) -> list[dict[str, object]]:
    """Rows of workloads whose steps take what `cost` says."""
    rows = []
    for workload in ("single", "long", "longbatch", "shared"):
        row: dict[str, object] = {**SETTING, "workload": workload}
        whole, *first = (float(each.work @ np.array(astuple(cost))) for each in _measured(row))
        rows.append({**row, "best_seconds": whole, "time_to_first_token": (first or [1.0])[0]})
    return rows


@pytest.mark.parametrize(
    "cost",
    [
        LinearCost(0.005, 4e-4, 1e-7, 1e-8),
        LinearCost(0.01, 2e-5, 0.0, 0.0),
        LinearCost(0.005, 4e-4, 1e-7, 1e-8, 3e-4),
    ],
)
def test_costs_are_found_again(cost: LinearCost, tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    lines = ["a table", *map(json.dumps, benched(cost))]
    path.write_text("\n".join(lines), "utf-8")
    assert astuple(read_cost(str(path))) == pytest.approx(astuple(cost), rel=1e-3, abs=1e-10)


def test_rows_of_an_older_version_are_refused() -> None:
    with pytest.raises(ValueError, match="must have seed, num_blocks, block_size"):
        fitted([{"workload": "single", "seed": 1, "best_seconds": 2.0}])


@pytest.mark.parametrize("seconds", [0.0, float("inf"), float("nan")])
def test_rows_without_a_time_are_refused(seconds: float) -> None:
    row = {**SETTING, "workload": "single", "best_seconds": seconds, "time_to_first_token": seconds}
    with pytest.raises(InvalidOptionError, match="no row of `pagoda bench` tells a time"):
        fitted([row])


def test_words_are_read_as_before(tmp_path: Path) -> None:
    assert read_cost("step=1") == LinearCost(1.0, 0.0)
    with pytest.raises(ValueError, match="cannot be read"):
        read_cost("/nowhere/cost.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InvalidOptionError, match="or a file of JSON"):
        read_cost(str(tmp_path / "deep.json"))
