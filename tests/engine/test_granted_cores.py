from __future__ import annotations

from pathlib import Path

import pytest

from pagoda.engine.devices import memory
from pagoda.engine.devices.cores import num_usable_cores


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
