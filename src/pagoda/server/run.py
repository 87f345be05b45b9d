"""Serves an application until it is told to stop."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

_SHUTDOWN_TIMEOUT_S = 30


def run(app: FastAPI, listener: socket.socket) -> None:
    """Answer requests on `listener` until SIGINT or SIGTERM; running requests may finish."""
    config = uvicorn.Config(
        app, log_config=None, timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S, lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[listener])
