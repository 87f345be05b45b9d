"""An engine that runs ahead on a CPU, as one on a GPU does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from pagoda.engine.core import Engine
from pagoda.engine.runner import AheadRunner, Runner
from pagoda.execution.batch import NONE_DRAWN, Batch
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.scheduling import RunAhead


class KeepingExecutor:
    """Keeps what was drawn where only it can see it, and puts it into the next batch."""

    def __init__(self, executor: CPUExecutor) -> None:
        self.executor = executor
        self.storage = executor.storage
        self._drawn = np.zeros(0, np.int64)

    def forward(self, batch: Batch) -> torch.Tensor:
        token_ids = batch.token_ids.copy()
        token_ids[batch.drawn.rows] = self._drawn[batch.drawn.places]
        return self.executor.forward(replace(batch, token_ids=token_ids, drawn=NONE_DRAWN))

    def keep_drawn(self, token_ids: torch.Tensor) -> None:
        self._drawn = token_ids.numpy().copy()

    def require_device(self) -> None:
        """A CPU does not fail."""


def let_run_ahead(engine: Engine) -> Engine:
    """The engine, whose next steps are launched before the tokens of the last are read."""
    return with_runner(engine, AheadRunner(KeepingExecutor(engine._runner._executor)))


def with_runner(engine: Engine, runner: Runner) -> Engine:
    """The engine, with another runner in the place of its own."""
    assert not engine.has_unfinished
    engine._runner = runner
    engine._ahead = RunAhead(1 if runner.runs_ahead else 0)
    return engine
