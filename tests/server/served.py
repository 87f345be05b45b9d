"""The application behind a real socket, served by a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from pagoda.server.app import create_app
from pagoda.server.listener import bind, start_listening, url_of


@contextmanager
def served(engine: Any, *options: Any, **named: Any) -> Iterator[str]:
    """Serve `engine` as `create_app` makes it; the address."""
    with bind("127.0.0.1", 0) as listener:
        start_listening(listener)
        app = create_app(engine, *options, **named)
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
