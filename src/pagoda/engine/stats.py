"""A snapshot of what an engine is doing and has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
    """Of all requests that came."""
    prompt_tokens_cached: int
    """Of those whose prompt is done, what came from the cache."""
    prompt_tokens_computed: int
    """Of those whose prompt is done, all else."""
    generation_tokens: int
    num_finished: Mapping[str, int]
    """Sequences by finish reason."""
