"""Serves an application until it is told to stop."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

_SHUTDOWN_TIMEOUT_S = 30


def run(app: FastAPI, listener: socket.socket) -> None:
    """Answer requests on `listener` until SIGINT or SIGTERM; running requests may finish.

    Returns when all is done. To be called from the main thread.
    """
    config = uvicorn.Config(
        app, log_config=None, timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S, lifespan="on"
    )
    # Uvicorn shuts down in good order and then raises the signal again: being told to stop is
    # no failure.
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
