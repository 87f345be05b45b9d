"""Engines with a tier in memory whose threads work between two turns, always alike."""

from __future__ import annotations

from functools import partial

import pytest

from pagoda.engine.build import Model, connect
from pagoda.engine.core import Engine
from pagoda.engine.options import EngineOptions
from pagoda.engine.transfers import wiring
from pagoda.tiers.mover import TierMover
from pagoda.tiers.segment import Segment
from tiers.fake_tier import FakeTier, ManualWorkers

_TASKS = 2
"""Done in one turn: a prefix takes some turns to come."""


def tiered_engine(
    model: Model, tier: FakeTier, *, patch: pytest.MonkeyPatch, **options: object
) -> Engine:
    """An engine that loads all that the tier has."""
    workers: list[ManualWorkers] = []

    def new_workers(name: str, num_threads: int) -> ManualWorkers:
        workers.append(ManualWorkers(name, num_threads))
        return workers[-1]

    patch.setattr(wiring, "TierMover", partial(TierMover, new_workers=new_workers, probes=False))
    patch.setattr(wiring, "worth_loading", all_rows)
    engine = connect(model, EngineOptions(kv_tier=[tier], **options))  # type: ignore[arg-type]
    engine.transfers.loads._allowance_s = lambda compute_s: 60.0  # type: ignore[attr-defined]
    take_in = engine.transfers.take_in

    def work_and_take_in() -> None:
        for each in workers:
            each.work(_TASKS)
        take_in()

    engine.transfers.take_in = work_and_take_in  # type: ignore[method-assign]
    return engine


def all_rows(segments: tuple[Segment, ...], row_s: float | None) -> int:
    """A gate that says yes: tiny models compute quicker than anything loads."""
    return sum(each.num_rows for each in segments)
