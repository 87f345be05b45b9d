"""Serves an application until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from pagoda.server.admission import Admission
from pagoda.server.connection import patient_for
from pagoda.server.options import ServerOptions

logger = logging.getLogger("pagoda")

_KEEP_ALIVE_S = 75
"""Longer than clients keep a connection: who closes first cannot cut off a request on its way."""
_LAST_WORDS_S = 5
"""For connections to close once no request runs."""


def run(app: FastAPI, listener: socket.socket, options: ServerOptions) -> None:
    """Answer requests on `listener` until SIGINT or SIGTERM. To be called from the main thread.

    Then running requests may finish, within `options.shutdown_timeout`, while new ones are told
    503. A second signal ends everything at once.
    """
    config = config_of(app, options)
    _Server(config, app.state.admission, options.shutdown_timeout).run(sockets=[listener])


def config_of(app: FastAPI, options: ServerOptions) -> uvicorn.Config:
    """How Uvicorn is to serve `app`."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        http=patient_for(options.client_timeout),
        ws="none",
        h11_max_incomplete_event_size=options.max_header_bytes,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_LAST_WORDS_S,
        server_header=False,
    )


class _Server(uvicorn.Server):
    """Uvicorn's server, but it goes on listening while running requests finish."""

    def __init__(self, config: uvicorn.Config, admission: Admission, timeout_s: float) -> None:
        super().__init__(config)
        self._admission = admission
        self._timeout_s = timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by a signal, between any two instructions of the main thread."""
        if self._admission.is_closed or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        self._admission.close()
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = asyncio.ensure_future(self._wait_for_requests())

    async def _wait_for_requests(self) -> None:
        num = self._admission.num_in_flight
        if num:
            logger.info("shutting down: %d requests may finish within %g s", num, self._timeout_s)
            try:
                await asyncio.wait_for(self._admission.emptied(), self._timeout_s)
            except TimeoutError:
                left = self._admission.num_in_flight
                logger.warning("%d requests did not finish within %g s", left, self._timeout_s)
        self.should_exit = True
