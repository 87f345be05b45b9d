"""Serves an application until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import State

from pagoda.errors import EngineError
from pagoda.server.admission import Admission
from pagoda.server.connection import patient_for
from pagoda.server.connection_limit import ConnectionLimit, most_connections
from pagoda.server.fair_loop import MOST_AT_ONCE, FairLoop
from pagoda.server.listener import start_listening
from pagoda.server.options import ServerOptions
from pagoda.server.service_manager import ServiceManager
from pagoda.server.watchdog import LAST_STEP_S, end_process

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

logger = logging.getLogger("pagoda")

_KEEP_ALIVE_S = 75
"""Longer than clients keep a connection: who closes first cannot cut off a request on its way."""
_LAST_WORDS_S = 5
"""For connections to close once no request runs."""
_LOST = "the engine has stopped, so the server ends"
_HANGS = f"the engine's step has not ended within {LAST_STEP_S:g} s: the server ends without it"


def run(app: FastAPI, listener: socket.socket, options: ServerOptions) -> None:
    """Answer requests on `listener` until SIGINT or SIGTERM. To be called from the main thread.

    Then running requests may finish, within `options.shutdown_timeout`, while new ones are told
    503; what is left is told so and ended, by a second signal at once. A third one ends the
    process, with status 1.

    Raises `EngineError` once the engine's thread has ended of itself: nothing can be answered any
    more, and whoever watches the process is to start it again. Also where the server has ended and
    a step of the engine, which hangs, has not.
    """
    server = _Server(config_of(app, options), app.state, options.shutdown_timeout)
    with asyncio.Runner(loop_factory=FairLoop) as runner:
        runner.run(server.serve(sockets=[listener]))
    if server.has_lost_engine:
        raise EngineError(_LOST)
    if server.engine.step_age_s:
        raise EngineError(_HANGS)


def config_of(app: FastAPI, options: ServerOptions) -> uvicorn.Config:
    """How Uvicorn is to serve `app`. Raises `InvalidOptionError` for too many connections."""
    most = most_connections(options.max_num_connections)
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        http=patient_for(options.client_timeout, ConnectionLimit(most)),
        ws="none",
        h11_max_incomplete_event_size=options.max_header_bytes,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LAST_WORDS_S,
        server_header=False,
    )


class _Server(uvicorn.Server):
    """Uvicorn's server, but it goes on listening while running requests finish."""

    def __init__(self, config: uvicorn.Config, state: State, timeout_s: float) -> None:
        super().__init__(config)
        self._admission: Admission = state.admission
        self.engine: AsyncEngine = state.engine
        self.has_lost_engine = False
        self._manager = ServiceManager()
        self._timeout_s = timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._num_signals = 0
        self._hurried = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.backlog = MOST_AT_ONCE  # so many are taken at a time
        await super().startup(sockets)
        for each in sockets or ():
            start_listening(each)  # more than that may wait

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; whether the server is to end."""
        if not self.engine.is_alive and not self._num_signals:
            logger.critical("%s", _LOST)
            self._admission.close()
            self.has_lost_engine = True
            return True
        self._manager.ready()
        self._manager.sign_of_life()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal, between any two instructions of the main thread.

        The first one lets running requests finish, the second ends them, a third the process.
        """
        self._num_signals += 1
        if self._num_signals > 2:
            end_process()
        elif self._loop is None:
            self.should_exit = self.force_exit = True
        elif self._num_signals == 2:
            self._loop.call_soon_threadsafe(self._hurried.set)
        else:
            self._admission.close()
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        """Wait for running requests, end those that are left, and exit."""
        self._manager.stopping()
        num = self._admission.num_admitted
        if num:
            logger.info("shutting down: %d requests may finish within %g s", num, self._timeout_s)
            await self._finished_or_hurried()
            if left := self._admission.num_admitted:
                logger.warning("%d requests did not finish and are ended", left)
                await self.engine.shutdown(LAST_STEP_S)  # tells each of them
        self.should_exit = True

    async def _finished_or_hurried(self) -> None:
        either = [
            asyncio.ensure_future(self._admission.emptied()),
            asyncio.ensure_future(self._hurried.wait()),
        ]
        await asyncio.wait(either, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for waiting in either:
            waiting.cancel()
