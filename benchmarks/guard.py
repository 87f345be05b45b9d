"""Processes that end with the one that started them, however it ends.

A program that is killed can end nothing itself, and a process that is stopped does not notice that
its standard input was closed. So a third process, in a session of its own, waits until the one that
started it is gone, and then kills the group it guards:

    python guard.py GROUP    reads standard input to its end, then kills the process group
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def guarded(process: subprocess.Popen) -> Iterator[None]:
    """Until the block ends, the group that `process` leads is killed when this process is gone."""
    command = [sys.executable, "-I", __file__, str(process.pid)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        guard.kill()  # before its input is closed, which would tell it that we are gone
        guard.wait()
        guard.stdin.close()


def run_guarded(command: Sequence[str], timeout: float) -> int:
    """Run a command in a guarded group of its own; returns its exit code.

    What is left of the group is killed at the end. Raises `subprocess.TimeoutExpired`.
    """
    process = subprocess.Popen(command, start_new_session=True)
    try:
        with guarded(process):
            return process.wait(timeout)
    finally:
        send(process, signal.SIGKILL)
        process.wait()


def send(process: subprocess.Popen, number: signal.Signals) -> None:
    """A signal to a process and all that it started in its group, which it leads."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    sys.stdin.read()
    with suppress(ProcessLookupError):
        os.killpg(int(sys.argv[1]), signal.SIGKILL)
