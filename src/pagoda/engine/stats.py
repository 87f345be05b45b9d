"""A snapshot of what an engine is doing and has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagoda.engine.timeline import Timeline
from pagoda.scheduling import Scheduler


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges as of now, and counters since the start. Tokens, unless a name says otherwise."""

    num_requests_running: int
    num_requests_waiting: int
    num_preemptions: int
    kv_cache_usage: float
    """Share of the blocks that sequences hold, 0 to 1."""
    num_blocks: int
    block_size: int
    enable_prefix_caching: bool
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_evicted_blocks: int
    num_computed_tokens: int
    """Through the model, those computed again after a preemption included."""
    prompt_tokens: int
    """In the prompts of all requests that came."""
    prompt_tokens_cached: int
    """In prompts that are done: what came from the cache."""
    prompt_tokens_computed: int
    """In prompts that are done: all else."""
    generation_tokens: int
    num_finished: Mapping[str, int]
    """Sequences by finish reason."""

    @classmethod
    def of(cls, scheduler: Scheduler, timeline: Timeline) -> EngineStats:
        """As of now."""
        steps, cache = scheduler.stats(), scheduler.cache.stats()
        return cls(
            num_requests_running=steps.num_running,
            num_requests_waiting=steps.num_waiting,
            num_preemptions=steps.num_preemptions,
            kv_cache_usage=cache.usage,
            num_blocks=cache.num_blocks,
            block_size=scheduler.cache.block_size,
            enable_prefix_caching=scheduler.cache.enable_prefix_caching,
            prefix_cache_queries=cache.prefix_queries,
            prefix_cache_hits=cache.prefix_hits,
            num_evicted_blocks=cache.evictions,
            num_computed_tokens=steps.num_computed_tokens,
            prompt_tokens=timeline.num_prompt_tokens,
            prompt_tokens_cached=timeline.num_prompt_tokens_cached,
            prompt_tokens_computed=timeline.num_prompt_tokens_computed,
            generation_tokens=timeline.num_generation_tokens,
            num_finished=steps.num_finished,
        )
