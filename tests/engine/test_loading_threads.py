"""How many threads load a model: a CPU's kernels put its weights into panels."""

from __future__ import annotations

from typing import Any

import numba
import pytest
import torch

from pagoda.engine.build import load_model
from pagoda.engine.devices import cpu_backend
from pagoda.engine.options import EngineOptions


@pytest.mark.parametrize(("asked", "usable"), [(1, 2), (None, 1)])
def test_weights_are_loaded_by_no_more_threads_than_run_steps(
    asked: int | None, usable: int, tiny_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, found = (numba.get_num_threads(), torch.get_num_threads()), []
    load_weights = cpu_backend.load_weights

    def load(*given: Any, **options: Any) -> Any:
        found.append((numba.get_num_threads(), torch.get_num_threads()))
        return load_weights(*given, **options)

    monkeypatch.setattr(cpu_backend, "load_weights", load)
    monkeypatch.setattr(cpu_backend, "num_usable_cores", lambda: usable)
    try:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        torch.set_num_threads(2)
        load_model(EngineOptions(model=tiny_directory, threads=asked))
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])
    assert found == [(1, 1)]
