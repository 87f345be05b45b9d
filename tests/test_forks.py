"""Tests in several processes, as `forks` runs them, with tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forks

FILES = {
    "conftest.py": """
import os, pytest, forks

forks.MUCH_BYTES = 2**26

def pytest_configure(config):
    config.pluginmanager.register(forks.Forks(int(os.environ["PROCESSES"]), lambda: None))

@pytest.fixture(autouse=True, scope="session")
def whole():
    open("begun", "a").write("b")
    yield
    open("ended", "a").write("e")
""",
    "test_many.py": """
import pytest, warnings

@pytest.mark.parametrize("i", range(20))
def test_many(i):
    assert i != 13, "unlucky"

def test_warns():
    warnings.warn("take care")
""",
    "test_grows.py": """
HELD = []

def test_grows():
    HELD.append(b"x" * 2**27)

def test_is_left():
    assert HELD
""",
    "test_skips.py": """
import pytest, sys

def test_no_error_is_being_handled():
    assert sys.exc_info() == (None, None, None)

def test_prints_and_fails():
    print("what was printed")
    raise OSError

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass
""",
}
DYING = """
import os

def test_lives():
    pass

def test_dies():
    {death}

def test_never_runs():
    pass
"""


def run(folder: Path, *arguments: str, num_processes: int = 2) -> str:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(forks.__file__).parent),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PROCESSES": str(num_processes),
    }
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=60
    ).stdout


def test_outcomes_are_told_as_pytest_tells_them(tmp_path: Path) -> None:
    told = run(tmp_path)
    assert "2 failed, 23 passed, 1 skipped, 1 warning" in told
    assert "FAILED test_many.py::test_many[13] - AssertionError: unlucky" in told
    assert "what was printed" in told
    assert "UserWarning: take care" in told


def test_a_process_that_has_grown_makes_room_for_another(tmp_path: Path) -> None:
    """Fixtures of a process end with it."""
    assert "2 failed, 23 passed" in run(tmp_path, num_processes=1)
    begun, ended = ((tmp_path / name).read_text() for name in ("begun", "ended"))
    assert len(begun) == len(ended) == 2


@pytest.mark.parametrize(("death", "code"), [("os._exit(3)", 3), ("raise KeyboardInterrupt", 130)])
def test_a_process_that_dies_fails_its_test(tmp_path: Path, death: str, code: int) -> None:
    (tmp_path / "test_dies.py").write_text(DYING.format(death=death))
    told = run(tmp_path, "test_dies.py")
    why = f"the process that ran this test ended with {code}"
    assert f"FAILED test_dies.py::test_dies - {why}" in told
    assert "1 failed, 1 passed" in told


def test_enough_failures_are_enough(tmp_path: Path) -> None:
    told = run(tmp_path, "-x", "test_skips.py")
    assert "stopping after 1 failures" in told
    assert "skipped" not in told
