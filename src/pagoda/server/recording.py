"""Recording a server's day for `pagoda replay`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pagoda.engine.options import EngineOptions
from pagoda.engine.tenant_quota import parse_quotas
from pagoda.replay.recorded import RecordedQuota, RecordedSetting
from pagoda.replay.recorder import Recorder
from pagoda.server.options import ServerOptions

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


@contextmanager
def recorded(
    engine: AsyncEngine, engine_options: EngineOptions, options: ServerOptions
) -> Iterator[None]:
    """Write a trace of what the engine serves while the block runs, where that is wanted.

    To be entered before the engine starts. Raises `InvalidOptionError` naming `record_trace` where
    its file cannot be written.
    """
    if options.record_trace is None:
        yield
        return
    setting = setting_of(engine, engine_options)
    recorder = Recorder(Path(options.record_trace), setting, options.record_trace_bytes)
    engine.engine.journal = recorder
    try:
        yield
    finally:
        recorder.close()


def setting_of(engine: AsyncEngine, options: EngineOptions) -> RecordedSetting:
    """What a replay has to know of the engine, which has taken these options."""
    scheduler = engine.engine.scheduler
    cache, given = scheduler.cache.stats(), parse_quotas(options.tenant_quotas)
    return RecordedSetting(
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        eviction_policy=options.eviction_policy,
        enable_prefix_caching=cache.enable_prefix_caching,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=engine.max_model_len,
        scheduling_policy=options.scheduling_policy,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        steps_ahead=engine.engine.num_steps_ahead,
        tenant_quotas=tuple(
            RecordedQuota(tenant, quota.floor, quota.cap, given[tenant].weight)
            for tenant, quota in zip(given, map(scheduler.cache.quota_of, given), strict=True)
        ),
        streams_step_aside=scheduler.streams_step_aside,
        has_tiers=bool(options.kv_tiers),
    )
