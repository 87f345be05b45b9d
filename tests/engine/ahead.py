"""An engine that runs ahead on a CPU, as one on a GPU does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from pagoda.engine.core import Engine
from pagoda.engine.runner import AheadRunner
from pagoda.execution.batch import Batch
from pagoda.execution.cpu.executor import CPUExecutor


class KeepingExecutor:
    """Keeps what was drawn where only it can see it, and puts it into the next batch."""

    def __init__(self, executor: CPUExecutor) -> None:
        self.executor = executor
        self.storage = executor.storage
        self._drawn = np.zeros(0, np.int64)

    def forward(self, batch: Batch) -> torch.Tensor:
        token_ids = batch.token_ids.copy()
        named = token_ids < 0
        token_ids[named] = self._drawn[-1 - token_ids[named]]
        return self.executor.forward(replace(batch, token_ids=token_ids))

    def keep_drawn(self, token_ids: torch.Tensor) -> None:
        self._drawn = token_ids.numpy().copy()

    def require_device(self) -> None:
        """A CPU does not fail."""


def let_run_ahead(engine: Engine) -> Engine:
    """The engine, whose next steps are launched before the tokens of the last are read."""
    assert not engine._launched
    engine._runner = AheadRunner(KeepingExecutor(engine._runner._executor))
    return engine
