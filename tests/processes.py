"""What becomes of processes: a signal takes effect when the kernel gets to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import psutil

_PATIENCE_S = 10.0
_POLL_S = 0.01


def hear_signals() -> None:
    """Of a process that is about to begin: SIGINT and SIGHUP end it, also where tests run behind
    a shell or under `nohup` and hear none themselves."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def becomes_stopped(process: psutil.Process) -> bool:
    """Within some seconds."""
    return happens(lambda: process.status() == psutil.STATUS_STOPPED)


def ends(process: psutil.Process) -> bool:
    """Within some seconds; one that nobody has asked for its exit code has ended too."""

    def has_ended() -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return happens(has_ended)


def happens(happened: Callable[[], bool], timeout_s: float = _PATIENCE_S) -> bool:
    """Whether it does within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
