"""What a benchmark starts ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

from guard import guarded, run_guarded  # noqa: E402

from processes import becomes_stopped, ends  # noqa: E402

# A process with a child, both of which stop themselves; the child tells who they are.
FAMILY = """
import os, signal
pid = os.getpid()
if os.fork() == 0:
    print(pid, os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
STARTER = f"""
import subprocess, sys
from guard import guarded, run_guarded
command = [sys.executable, "-c", {FAMILY!r}]
"""
WAYS = {
    "guarded": "p = subprocess.Popen(command, start_new_session=True)\nwith guarded(p): p.wait()",
    "run_guarded": "run_guarded(command, 60)",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_group_ends_with_a_starter_that_is_killed(way: str) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER + WAYS[way]],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    family = [psutil.Process(int(pid)) for pid in starter.stdout.readline().split()]
    assert len(family) == 2
    assert all(becomes_stopped(process) for process in family)
    starter.kill()
    starter.wait()
    try:
        assert all(ends(process) for process in family)
    finally:
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def test_what_is_guarded_goes_on_after_the_guard() -> None:
    sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with guarded(sleeper):
        pass
    time.sleep(0.2)
    assert sleeper.poll() is None
    sleeper.kill()
    sleeper.wait()


def test_a_command_that_ends_tells_its_code() -> None:
    assert run_guarded([sys.executable, "-c", "raise SystemExit(3)"], 30) == 3


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    written = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        run_guarded(["sh", "-c", f"sleep 60 & echo $! >{written}; wait"], 1)
    pid = int(written.read_text())
    assert not psutil.pid_exists(pid) or ends(psutil.Process(pid))
