"""A line in the log every few seconds: how the engine is doing, in vLLM's words."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.stats import EngineStats

logger = logging.getLogger("pagoda")

INTERVAL_S = 10.0
_LINE = (
    "Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, "
    "Running: %d reqs, Waiting: %d reqs, GPU KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%"
)


class StatsLog:
    """Compares the engine's statistics with those of the last look."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._last = engine.stats()
        self._hit_rate = 0.0
        self._was_busy = False

    async def run(self) -> None:
        """Log until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL_S)
            now = time.monotonic()
            line = self.line(now - last)
            last = now
            if line is not None:
                logger.info("%s", line)

    def line(self, seconds: float) -> str | None:
        """What happened in the `seconds` since the last call.

        None where nothing did, nor in the interval before: the first idle one is still told.
        """
        stats, before = self._engine.stats(), self._last
        self._last = stats
        num_prompt = _num_prompt_tokens(stats) - _num_prompt_tokens(before)
        num_generated = stats.generation_tokens - before.generation_tokens
        num_here = stats.num_requests_running + stats.num_requests_waiting
        is_busy = bool(num_prompt or num_generated or num_here)
        was_busy, self._was_busy = self._was_busy, is_busy
        self._note_hits(stats, before)
        if not (is_busy or was_busy):
            return None
        return _LINE % (
            num_prompt / seconds,
            num_generated / seconds,
            stats.num_requests_running,
            stats.num_requests_waiting,
            stats.kv_cache_usage * 100,
            self._hit_rate * 100,
        )

    def _note_hits(self, stats: EngineStats, before: EngineStats) -> None:
        """The rate of the interval; where nothing was looked up, the last one stands."""
        num_queries = stats.prefix_cache_queries - before.prefix_cache_queries
        if num_queries:
            self._hit_rate = (stats.prefix_cache_hits - before.prefix_cache_hits) / num_queries


def _num_prompt_tokens(stats: EngineStats) -> int:
    """Tokens of prompts that are done, cached or computed."""
    return stats.prompt_tokens_cached + stats.prompt_tokens_computed
