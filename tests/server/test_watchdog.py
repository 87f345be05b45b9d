"""What the server says and does while a step of its engine hangs."""

from __future__ import annotations

import logging

import httpx
import pytest

from pagoda.engine.step_watch import StepWatch
from pagoda.errors import InvalidOptionError
from pagoda.server.app import create_app
from pagoda.server.options import ServerOptions
from pagoda.server.watchdog import Watchdog
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


class Stuck(FakeEngine):
    """A step was quick, and the next has run since `now` was 0."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.watch = StepWatch(lambda: self.now)
        self.watch.begin()
        self.watch.hold(7)
        self.watch.conclude()
        self.watch.end()
        self.watch.begin()
        self.watch.hold(7)


async def test_health_tells_of_a_step_that_hangs_and_of_its_end() -> None:
    engine = Stuck()
    app = create_app(engine, ServerOptions(step_timeout=20))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        engine.now = 20
        assert (await client.get("/health")).status_code == 200
        engine.now = 21
        hung = await client.get("/health")
        assert "pagoda:step_age_seconds{" in (metrics := (await client.get("/metrics")).text)
        assert "} 21.0" in metrics
        engine.watch.end()
        assert (await client.get("/health")).status_code == 200
    assert hung.status_code == 503
    error = hung.json()["error"]
    assert error["code"] == "engine_hung"
    assert "a step of 7 tokens" in error["message"]


@pytest.mark.parametrize("exits", [False, True])
async def test_a_hang_is_logged_once_and_ends_the_process_where_it_shall(
    exits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine, ends = Stuck(), []
    options = ServerOptions(step_timeout=20, exit_on_hang=exits)
    watchdog = Watchdog(engine, options, end=lambda: ends.append(engine.now))
    with caplog.at_level(logging.INFO, logger="pagoda"):
        for engine.now in (1, 20, 21, 22):
            watchdog.look()
        engine.watch.end()
        watchdog.look()
    assert ends == ([21, 22] if exits else [])
    told = [record.getMessage() for record in caplog.records]
    assert sum("in a kernel" in line for line in told) == 1
    assert told[-1] == "the engine goes on: the step that hung has ended"


async def test_a_timeout_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="step_timeout"):
        ServerOptions(step_timeout=0)
