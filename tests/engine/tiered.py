"""Engines with a tier in memory whose threads work between two turns, always alike."""

from __future__ import annotations

from functools import partial

import pytest

from pagoda.engine.build import Model, connect
from pagoda.engine.core import Engine
from pagoda.engine.options import EngineOptions
from pagoda.engine.prefill_rate import PrefillRate
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
    engine = connect(model, EngineOptions(kv_tier=[tier], **options))  # type: ignore[arg-type]
    let_load(engine)
    loads = engine.transfers.loads  # type: ignore[attr-defined]
    loads._allowance_s = loads._answer_s = lambda *given: 60.0
    take_in = engine.transfers.take_in

    def work_and_take_in() -> None:
        for each in workers:
            each.work(_TASKS)
        take_in()

    engine.transfers.take_in = work_and_take_in  # type: ignore[method-assign]
    return engine


class MadeUpRate(PrefillRate):
    """Says of any prompt that computing it takes so long: tiny models compute quicker than anything
    loads."""

    def __init__(self, compute_s: float) -> None:
        super().__init__()
        self.compute_s = compute_s

    def seconds(self, num_tokens: int) -> float:
        return self.compute_s


def let_load(engine: Engine, compute_s: float = 10.0) -> MadeUpRate:
    """All that tiers have is worth loading, and may take up to `compute_s`."""
    rate, loads = MadeUpRate(compute_s), engine.transfers.loads  # type: ignore[attr-defined]
    loads._gate, loads._prefill_rate = all_rows, rate
    return rate


def all_rows(segments: tuple[Segment, ...], row_s: float | None) -> int:
    """A gate that says yes."""
    return sum(each.num_rows for each in segments)
