"""A snapshot of what an engine is doing and has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagoda.cache import CacheStats
from pagoda.cache.explainer import MissExplainer
from pagoda.cache.miss import Cause
from pagoda.engine.timeline import Timeline
from pagoda.scheduling import Scheduler, SchedulerStats

FIGURES = (
    "num_requests_running",
    "num_requests_waiting",
    "num_preemptions",
    "kv_cache_usage",
    "num_blocks",
    "block_size",
    "enable_prefix_caching",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prefix_cache_miss_tokens",
    "num_evicted_blocks",
    "num_computed_tokens",
    "prompt_tokens",
    "prompt_tokens_cached",
    "prompt_tokens_computed",
    "generation_tokens",
    "num_finished",
)
"""The names that `EngineStats.figures` tells."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges as of now, and counters since the start. Tokens, unless a name says otherwise.

    A figure is counted where it happens: sequences in `scheduler`, blocks and hits in `cache`, the
    rest here. The properties tell the best known of them under vLLM's names.
    """

    scheduler: SchedulerStats
    cache: CacheStats
    prompt_tokens: int
    """In the prompts of all requests that came."""
    prompt_tokens_cached: int
    """In prompts that are done: what came from the cache."""
    prompt_tokens_computed: int
    """In prompts that are done: all else."""
    generation_tokens: int
    prefix_cache_miss_tokens: Mapping[Cause, int] = field(default_factory=dict)
    """Tokens that were looked for and not found, or that were not looked for, by cause."""

    @classmethod
    def of(
        cls, scheduler: Scheduler, timeline: Timeline, misses: MissExplainer | None = None
    ) -> EngineStats:
        """As of now."""
        return cls(
            scheduler=scheduler.stats(),
            cache=scheduler.cache.stats(),
            prompt_tokens=timeline.num_prompt_tokens,
            prompt_tokens_cached=timeline.num_prompt_tokens_cached,
            prompt_tokens_computed=timeline.num_prompt_tokens_computed,
            generation_tokens=timeline.num_generation_tokens,
            prefix_cache_miss_tokens={} if misses is None else misses.num_tokens,
        )

    def figures(self) -> dict[str, Any]:
        """All figures in one mapping, by the names that they have here."""
        return {name: getattr(self, name) for name in FIGURES}

    @property
    def num_requests_running(self) -> int:
        """Sequences in the running batch."""
        return self.scheduler.num_running

    @property
    def num_requests_waiting(self) -> int:
        """Sequences that wait to be scheduled."""
        return self.scheduler.num_waiting

    @property
    def num_preemptions(self) -> int:
        return self.scheduler.num_preemptions

    @property
    def num_computed_tokens(self) -> int:
        """Through the model, those computed again after a preemption included."""
        return self.scheduler.num_computed_tokens

    @property
    def num_finished(self) -> Mapping[str, int]:
        """Sequences by finish reason."""
        return self.scheduler.num_finished

    @property
    def num_blocks(self) -> int:
        return self.cache.num_blocks

    @property
    def block_size(self) -> int:
        return self.cache.block_size

    @property
    def enable_prefix_caching(self) -> bool:
        return self.cache.enable_prefix_caching

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that sequences hold, 0 to 1."""
        return self.cache.usage

    @property
    def prefix_cache_queries(self) -> int:
        """Tokens that were looked up when their sequence began."""
        return self.cache.prefix_queries

    @property
    def prefix_cache_hits(self) -> int:
        """Tokens found, among those looked for."""
        return self.cache.prefix_hits

    @property
    def num_evicted_blocks(self) -> int:
        """Cached blocks that were forgotten for new ones."""
        return self.cache.evictions
