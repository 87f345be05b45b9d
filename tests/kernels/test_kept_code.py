from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.caching import CacheImpl

from pagoda.kernels.cpu import kept_code
from pagoda.kernels.cpu.attention_rows import load_routine
from pagoda.kernels.cpu.number import number_at, put_number
from pagoda.kernels.cpu.routine import compiled
from pagoda.kernels.cpu.whole_queries import round_queries_routine


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    kept_code._tell_unkept.cache_clear()
    return tmp_path


def adder(amount: float) -> Any:
    """A routine of which each amount makes another form."""
    added = np.float32(amount)

    def add(address: int) -> None:
        put_number(address, 0, number_at(address, 0, False) + added, False)

    return compiled(add, 1)


def sum_of(routine: Any) -> float:
    """What it makes of 1."""
    number = np.ones(1, np.float32)
    routine.ctypes(number.ctypes.data)
    return float(number[0])


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_each_form_has_a_file_that_later_starts_read(folder: Path):
    first = [adder(amount) for amount in (2, 3)]
    assert [routine.cache_hits for routine in first] == [0, 0]
    assert len(files(folder)) == 2
    again = [adder(amount) for amount in (2, 3)]
    assert [routine.cache_hits for routine in again] == [1, 1]
    assert [sum_of(routine) for routine in again] == [3, 4]


def test_a_form_has_one_name_however_often_it_is_made(folder: Path):
    made = [routine.__wrapped__(64, 16) for routine in (round_queries_routine,) * 2]
    made += [load_routine.__wrapped__(False, 64) for _ in range(2)]
    assert [routine.cache_hits for routine in made] == [0, 1, 0, 1]
    assert len(files(folder)) == 2


def test_code_under_the_name_of_another_form_is_compiled_anew(folder: Path):
    adder(2)
    [two] = files(folder)
    adder(3)
    [three] = set(files(folder)) - {two}
    kept = two.read_bytes()
    two.write_bytes(three.read_bytes())
    found = adder(2)
    assert (found.cache_hits, sum_of(found)) == (0, 3)
    assert adder(2).cache_hits == 1
    assert len(two.read_bytes()) == len(kept)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: b"",
        lambda kept: kept[:20],
        lambda kept: kept[:-1],
        lambda kept: bytes(len(kept)),
        lambda kept: kept[:-1] + bytes([kept[-1] ^ 1]),
    ],
    ids=["emptied", "without a whole digest", "cut off", "zeros", "a bit"],
)
def test_damaged_code_is_compiled_anew_and_mended(folder: Path, damage: Callable[[bytes], bytes]):
    adder(2)
    [file] = files(folder)
    file.write_bytes(damage(file.read_bytes()))
    found = adder(2)
    assert (found.cache_hits, sum_of(found)) == (0, 3)
    assert adder(2).cache_hits == 1


def test_on_a_full_disk_code_is_compiled_and_that_is_said_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def is_full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", is_full)
    with caplog.at_level(logging.WARNING):
        assert [sum_of(adder(amount)) for amount in (2, 3)] == [3, 4]
    [line] = caplog.messages
    assert "compiled kernels are not kept" in line
    assert f"No space left on device: {folder}" in line
    assert files(folder) == []


def test_without_a_folder_code_is_compiled_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with caplog.at_level(logging.WARNING):
        assert [sum_of(adder(amount)) for amount in (2, 3)] == [3, 4]
    [line] = caplog.messages
    assert "NUMBA_CACHE_DIR names another" in line
