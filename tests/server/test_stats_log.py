from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from pagoda.engine.stats import EngineStats
from pagoda.server import stats_log
from pagoda.server.app import create_app
from pagoda.server.options import ServerOptions
from pagoda.server.stats_log import StatsLog
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio


class Told(FakeEngine):
    """An engine whose statistics are set."""

    def __init__(self) -> None:
        super().__init__()
        self.told = super().stats()

    def stats(self) -> EngineStats:
        return self.told

    def tell(self, **fields: float) -> None:
        self.told = told(self.told, fields)


def told(stats: EngineStats, fields: dict[str, float]) -> EngineStats:
    """The statistics with other values in fields of their own, the scheduler's or the cache's."""
    parts: dict[str, Any] = {}
    for part in ("scheduler", "cache"):
        present = getattr(stats, part)
        named = {name: fields[name] for name in fields if hasattr(present, name)}
        parts[part] = replace(present, **named)
    own = {name: fields[name] for name in fields if name in EngineStats.__slots__}
    return replace(stats, **parts, **own)  # type: ignore[arg-type]


def test_the_line_is_of_the_interval() -> None:
    engine = Told()
    log = StatsLog(engine)
    assert log.line(10) is None
    engine.tell(
        prompt_tokens_cached=70 + 30,
        prompt_tokens_computed=50 + 20,
        generation_tokens=123,
        num_running=2,
        num_waiting=1,
        prefix_queries=200 + 80,
        prefix_hits=150 + 30,
    )
    assert log.line(10) == (
        "Engine 000: Avg prompt throughput: 5.0 tokens/s, "
        "Avg generation throughput: 12.3 tokens/s, Running: 2 reqs, Waiting: 1 reqs, "
        "GPU KV cache usage: 25.0%, Prefix cache hit rate: 37.5%"
    )
    engine.tell(num_running=0, num_waiting=0, num_free_blocks=40)
    assert log.line(10) == (
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, "
        "GPU KV cache usage: 0.0%, Prefix cache hit rate: 37.5%"
    )
    assert log.line(10) is None


@pytest.mark.parametrize("is_disabled", [False, True])
async def test_it_is_logged_while_the_application_runs(
    is_disabled: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pagoda")
    monkeypatch.setattr(stats_log, "INTERVAL_S", 0.01)
    engine = Told()
    app = create_app(engine, ServerOptions(disable_log_stats=is_disabled))
    async with app.router.lifespan_context(app):
        engine.tell(num_running=1)
        await asyncio.sleep(0.1)
    lines = [message for message in caplog.messages if message.startswith("Engine 000: ")]
    assert bool(lines) is not is_disabled
    caplog.clear()
    await asyncio.sleep(0.03)
    assert caplog.messages == []
