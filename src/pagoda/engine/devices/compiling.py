"""A line in the log where kernels for CPUs are compiled, and none where they are found on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from numba.core.event import Listener, install_listener

from pagoda.engine.slow_notice import PATIENCE_S, told_if_slow

_COMPILING = "numba:run_pass"
"""What Numba tells of each pass over code, of functions and of C callbacks alike; code that it has
from disk needs none."""
_MESSAGE = "compiling kernels for this machine; once, some 20 s for the first model"


@contextmanager
def told_if_compiling(message: str = _MESSAGE, after_s: float = PATIENCE_S) -> Iterator[None]:
    """As `told_if_slow` from the moment on that Numba compiles anything within the block."""
    with ExitStack() as notice:
        first = _First(lambda: notice.enter_context(told_if_slow(message, after_s)))
        with install_listener(_COMPILING, first):
            yield


class _First(Listener):
    """Calls `begin` at the first event."""

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin: Callable[[], object] | None = begin

    def on_start(self, event: Any) -> None:
        """Of a pass."""
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()

    def on_end(self, event: Any) -> None:
        """Nothing more is to be told."""
