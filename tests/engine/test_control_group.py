from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pagoda.engine.devices import control_group
from pagoda.engine.devices.cores import num_usable_cores

Write = Callable[[str, Mapping[str, Mapping[str, str]]], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Groups by their paths, each with the files it has, and the group that the process is in."""

    def write(own: str, groups: Mapping[str, Mapping[str, str]]) -> None:
        for name, files in groups.items():
            (tmp_path / "groups" / name).mkdir(parents=True, exist_ok=True)
            for file, text in files.items():
                (tmp_path / "groups" / name / file).write_text(text)
        (tmp_path / "own").write_text(f"1:net_cls:/elsewhere\n0::{own}\n")

    monkeypatch.setattr(control_group, "_ROOT", tmp_path / "groups")
    monkeypatch.setattr(control_group, "_OWN", tmp_path / "own")
    return write


@pytest.mark.parametrize(
    ("text", "granted", "usable"),
    [("max 100000\n", None, None), ("50000 100000\n", 0.5, 1), ("100000 100000\n", 1.0, 1)],
)
def test_a_container_may_grant_less_than_the_machine_has(
    text: str, granted: float | None, usable: int | None, write: Write
) -> None:
    write("/", {"": {}})
    without = num_usable_cores()
    write("/", {"": {"cpu.max": text}})
    assert control_group.granted_cores() == granted
    assert num_usable_cores() == (without if usable is None else usable)


def memory(most: str, used: int, of_files: int = 0) -> dict[str, str]:
    stat = f"anon 5\ninactive_file {of_files}\n"
    return {"memory.max": f"{most}\n", "memory.current": f"{used}\n", "memory.stat": stat}


def test_bounds_of_a_service_and_of_what_it_is_in_count(write: Write) -> None:
    groups = {
        "a.slice/b.service": {**memory("1000", 400, 50), "cpu.max": "300000 100000"},
        "a.slice": {**memory("2000", 1900, 20), "cpu.max": "150000 100000"},
        "other": {**memory("10", 10), "cpu.max": "1000 100000"},
    }
    write("/a.slice/b.service", groups)
    assert control_group.free_bytes() == 120
    assert control_group.granted_cores() == 1.5
    write("/a.slice/b.service", {"a.slice": memory("max", 1900)})
    assert control_group.free_bytes() == 650
    write("/a.slice/b.service", {"a.slice/b.service": memory("300", 400)})
    assert control_group.free_bytes() == 0


@pytest.mark.parametrize("own", ["/gone", "/../beside", "/"])
def test_of_a_group_that_cannot_be_seen_the_root_counts(own: str, write: Write) -> None:
    write(own, {"": memory("1000", 300), "../beside": memory("10", 5)})
    assert control_group.free_bytes() == 700


def test_without_control_groups_all_is_granted(write: Write) -> None:
    assert control_group.granted_cores() is None
    assert control_group.free_bytes() is None
    assert num_usable_cores() >= 1
