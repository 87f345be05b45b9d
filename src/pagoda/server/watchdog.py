"""Looks whether the engine's step hangs, says so, and ends the process where that is wanted.

the step ends in time            nothing
it does not                      a critical line, with where the engine's thread is
    with `--exit-on-hang`        the process ends with status 1, for a supervisor to start again
    otherwise                    /health says 503 until the step ends after all
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from pagoda.server.options import ServerOptions

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

logger = logging.getLogger("pagoda")

_INTERVAL_S = 1.0
LAST_STEP_S = 5.0
"""The running step has so long to end once the server does."""


def end_process() -> None:
    """End at once, with status 1: a thread that hangs cannot be waited for."""
    try:
        logging.shutdown()
    finally:
        os._exit(1)


class Watchdog:
    """Tells of each step that hangs once, and ends the process if that is asked for."""

    def __init__(
        self, engine: AsyncEngine, options: ServerOptions, end: Callable[[], None] = end_process
    ) -> None:
        self._engine = engine
        self._options = options
        self._end = end
        self._has_told = False

    async def run(self) -> None:
        """Look every second until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_INTERVAL_S)

    def look(self) -> None:
        """Tell of a step that hangs, or that it has gone on; ends the process if it is to end."""
        hung = self._engine.hung_step(self._options.step_timeout)
        if hung is None:
            if self._has_told:
                logger.warning("the engine goes on: the step that hung has ended")
            self._has_told = False
            return
        if not self._has_told:
            logger.critical(
                "the engine hangs: %s; its thread is at\n%s", hung, self._engine.where()
            )
        self._has_told = True
        if self._options.exit_on_hang:
            logger.critical("the process ends, so that it can be started again (--exit-on-hang)")
            self._end()
