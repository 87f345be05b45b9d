"""The process that threads run in: a fork copies memory, and none of the threads beside it."""

from __future__ import annotations

import os
from functools import cache

from pagoda.errors import EngineError


class OwnProcess:
    """The process that this was made in."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def require(self) -> None:
        """Raises `EngineError` in a process that was forked from it."""
        if os.getpid() != self._pid:
            raise EngineError(
                f"engines do not survive a fork, and process {self._pid} has run one, or begun to "
                f"load one, before it forked this one: start processes by "
                f'multiprocessing.get_context("spawn"), and make engines there'
            )


@cache
def process_of_kernels() -> OwnProcess:
    """The one in which this was asked for first: before the threads of kernels start, which is
    once, for all engines. A process that is forked from it remembers that."""
    return OwnProcess()
