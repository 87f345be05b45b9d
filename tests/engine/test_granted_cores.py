from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import pytest
import torch

from pagoda.engine.build import load_model
from pagoda.engine.devices import cpu_backend, memory
from pagoda.engine.devices.cores import num_usable_cores
from pagoda.engine.options import EngineOptions


@pytest.mark.parametrize(
    ("text", "granted", "usable"),
    [("max 100000\n", None, None), ("50000 100000\n", 0.5, 1), ("100000 100000\n", 1.0, 1)],
)
def test_a_container_may_grant_less_than_the_machine_has(
    text: str, granted: float | None, usable: int | None,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path)
    without = num_usable_cores()
    (tmp_path / "cpu.max").write_text(text)
    assert memory.granted_cores() == granted
    assert num_usable_cores() == (without if usable is None else usable)


def test_without_a_control_group_all_cores_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path / "none")
    assert memory.granted_cores() is None
    assert num_usable_cores() >= 1


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
