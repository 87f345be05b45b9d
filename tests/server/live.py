"""A server over a real socket in a thread of its own, for tests with clients that block."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
import uvicorn.server

from pagoda.server.app import create_app
from pagoda.server.keys import KeyRing
from pagoda.server.listener import bind, start_listening, url_of
from pagoda.server.options import ServerOptions
from pagoda.server.run import config_of


class _Quick:
    """asyncio for uvicorn's server, which looks every tenth of a second whether it shall end, and
    takes another for its connections to close."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


@contextmanager
def live_server(
    engine: Any,
    options: ServerOptions | None = None,
    keys: KeyRing | None = None,
    port: int = 0,
) -> Iterator[str]:
    """The address of a server over `engine`, as long as the block runs; 0 is any free port."""
    with pytest.MonkeyPatch.context() as patch, bind("127.0.0.1", port) as listener:
        patch.setattr(uvicorn.server, "asyncio", _Quick())
        start_listening(listener)
        app = create_app(engine, options, keys)
        config = config_of(app, options or ServerOptions())
        config.timeout_graceful_shutdown = 1
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def wait_until(happened: Callable[[], bool]) -> None:
    """Until something happens that another thread does, within half a minute."""
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)
