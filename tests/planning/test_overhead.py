"""Ranges of what is not known before it runs hold what start-ups have told."""

from __future__ import annotations

import pytest

from pagoda.models.config import ModelConfig
from pagoda.planning.overhead import (
    activation_range,
    graphs_range,
    runtime_range,
    trial_run,
)
from pagoda.planning.releases import read_version, release_of
from pagoda.planning.tables import find_model
from pagoda.sizing.step_limits import gpu_limits
from planning.start_ups import START_UPS

GIB = 2**30
TOLD = [fact for fact in START_UPS if "trial_gib" in fact and find_model(fact.get("shape", ""))]


@pytest.mark.parametrize("fact", TOLD, ids=lambda fact: fact["name"])
def test_activations_lie_in_their_range(fact: dict) -> None:
    version = read_version(fact["release"])
    assert version is not None
    row = find_model(fact["shape"])
    assert row is not None
    tokens, sequences = gpu_limits(int(fact.get("device_gib", 0) * GIB), fact.get("device", ""))
    if version == (0, 0, 0):  # prompts were not cut into chunks
        tokens = max(tokens, fact["length"])
    run = trial_run(ModelConfig(row[1]["config"]), (tokens, sequences), 1)
    bounds = activation_range(run, release_of(version))
    assert bounds.low / GIB <= fact["trial_gib"] <= bounds.high / GIB
    assert bounds.source


def test_enough_start_ups_tell() -> None:
    assert len(TOLD) >= 12


@pytest.mark.parametrize("fact", [f for f in START_UPS if "runtime_gib" in f])
def test_runtime_lies_in_its_range(fact: dict) -> None:
    bounds = runtime_range(1)
    assert bounds.low <= fact["runtime_gib"] * GIB <= bounds.high


def test_graphs_are_set_aside_since_0_21() -> None:
    assert graphs_range(release_of((0, 20, 0))).high == 0
    assert graphs_range(release_of((0, 21, 0))).high > 2 * GIB


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.19.1", (0, 19, 1)),
        ("0.9.x", (0, 9, 99)),
        ("~0.28", (0, 28, 99)),
        ("0.9.2.dev364", (0, 9, 2)),
        ("0.17.2rc1.dev133", (0, 17, 2)),
        ("0.10.x (kv_cache_utils.py:864)", (0, 10, 99)),
        ("v0.15.0rc3", (0, 15, 0)),
        ("V0 engine", (0, 0, 0)),
        ("nightly", None),
    ],
)
def test_versions_as_people_write_them(text: str, version: tuple[int, int, int] | None) -> None:
    assert read_version(text) == version
