"""Test processes side by side on the same cores, as `pytest --processes auto` starts them.

Threads of two processes that share cores wait for one another: PyTorch's and Numba's regions become
10 to 90 times slower. So each process computes with one thread. A test that is about several
(`@pytest.mark.threads`, or in a file of `by_file.ALONE`) has the machine to itself while it runs.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numba
import pytest
import torch

from pagoda.engine.devices import cpu_backend

ALL_CORES = cpu_backend.num_usable_cores()


class Machine:
    """Its cores: one for each of the processes that share it, or all of them for one alone."""

    def __init__(self) -> None:
        self._is_shared = False
        self._is_held = False

    def share(self) -> None:
        """With other processes, each of which has called this."""
        self._is_shared = True
        self._gate = os.open(Path(__file__).parent, os.O_RDONLY)
        self._room = os.open(__file__, os.O_RDONLY)
        numba.get_num_threads()  # loads Numba's OpenMP, which takes the variable for its own limit
        os.environ["OMP_NUM_THREADS"] = "1"  # for the programs that tests start

    @contextmanager
    def cores(self, *, alone: bool, stays: bool) -> Iterator[None]:
        """Cores for one test: one core, or all of them if it is `alone`.

        With `stays` this process keeps the machine for its next test, unless this one is broken
        off.
        """
        if not self._is_shared:
            yield
            return
        if not self._is_held:
            fcntl.flock(self._gate, fcntl.LOCK_EX)  # nobody overtakes who waits for the machine
            try:
                fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            finally:
                fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._is_held = False
        num_threads = ALL_CORES if alone else 1
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cpu_backend, "num_usable_cores", lambda: num_threads)
                numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
                torch.set_num_threads(num_threads)
                yield
            self._is_held = stays
        finally:
            if not self._is_held:
                fcntl.flock(self._room, fcntl.LOCK_UN)

    def give_back(self) -> None:
        """What is kept for a next test that will not come."""
        if self._is_held:
            self._is_held = False
            fcntl.flock(self._room, fcntl.LOCK_UN)


MACHINE = Machine()
