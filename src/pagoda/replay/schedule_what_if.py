"""What other sizes, policies and budgets would have done with scheduler and all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pagoda.cache import num_blocks_for
from pagoda.cache.miss import Cause
from pagoda.cache.quota import Quota
from pagoda.cache.watcher import CacheWatcher
from pagoda.replay.clock import Clock
from pagoda.replay.course import Percentiles
from pagoda.replay.optima import Optima, Optimum
from pagoda.replay.recorded import RecordedQuota, RecordedSetting
from pagoda.replay.schedule_replay import ScheduleOutcome, ScheduleReplay
from pagoda.replay.step_cost import StepCost
from pagoda.replay.trace import Trace
from pagoda.replay.what_if import CacheSetting, by_cause, require_some
from pagoda.scheduling import Scheduler


@dataclass(frozen=True, slots=True)
class SchedulerSetting:
    """One scheduler that is tried; the names and defaults are those of the engine's options."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int | None = None
    """None: what the pool holds."""
    scheduling_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    steps_ahead: int = 0
    tenant_quotas: tuple[RecordedQuota, ...] = ()
    """Of a pool of `quota_num_blocks`; in another one the same shares."""
    quota_num_blocks: int = 1
    streams_step_aside: bool = False


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """A cache, and a scheduler over it."""

    cache: CacheSetting
    scheduler: SchedulerSetting

    @property
    def max_model_len(self) -> int:
        most = self.cache.num_blocks * self.cache.block_size
        return self.scheduler.max_model_len or most

    @property
    def quotas(self) -> dict[str, Quota]:
        """By tenant, in the blocks of this pool: a cap holds one longest request at least, and
        floors leave room for one."""
        num_blocks, before = self.cache.num_blocks, self.scheduler.quota_num_blocks
        room, given = num_blocks - self._longest, self.scheduler.tenant_quotas
        floors = [each.floor * num_blocks // before for each in given]
        total = max(room, sum(floors), 1)
        return {
            each.tenant: each.in_pool(num_blocks, before, floor * room // total, self._longest)
            for each, floor in zip(given, floors, strict=True)
        }

    @property
    def _longest(self) -> int:
        """Blocks of the longest request."""
        size = self.cache.block_size
        return num_blocks_for(min(self.max_model_len, self.cache.num_blocks * size), size)

    @property
    def as_recorded(self) -> RecordedSetting:
        """The same in the words of a trace."""
        cache, scheduler = self.cache, self.scheduler
        return RecordedSetting(
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            eviction_policy=cache.eviction_policy,
            enable_prefix_caching=cache.enable_prefix_caching,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_num_seqs=scheduler.max_num_seqs,
            max_model_len=self.max_model_len,
            scheduling_policy=scheduler.scheduling_policy,
            long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
            steps_ahead=scheduler.steps_ahead,
            tenant_quotas=tuple(
                replace(each, floor=quota.floor, cap=quota.cap)
                for each, quota in zip(scheduler.tenant_quotas, self.quotas.values(), strict=True)
            ),
            streams_step_aside=scheduler.streams_step_aside,
        )

    def made(
        self,
        watchers: Sequence[CacheWatcher] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> Scheduler:
        """A new scheduler over a new cache. Raises `InvalidOptionError` for what cannot be.

        `clock`: seconds, by which blocks are accounted for."""
        return Scheduler(
            self.cache.cache(watchers, self.quotas, clock),
            max_num_batched_tokens=self.scheduler.max_num_batched_tokens,
            max_num_seqs=self.scheduler.max_num_seqs,
            max_model_len=self.max_model_len,
            policy=self.scheduler.scheduling_policy,
            long_prefill_token_threshold=self.scheduler.long_prefill_token_threshold,
            tenant_weights={each.tenant: each.weight for each in self.scheduler.tenant_quotas},
            streams_step_aside=self.scheduler.streams_step_aside,
        )


@dataclass(frozen=True, slots=True)
class ScheduleAnswer:
    """What became of one setting."""

    setting: ServerSetting
    outcome: ScheduleOutcome
    optimum: Optimum | None
    """Of the cache alone, one request after another; None if it was not asked for."""
    by_steps: bool
    """Requests came at the recorded steps."""
    missed: Mapping[Cause, int]
    """Tokens of prompts that were not found, by cause."""
    num_faults: int
    duration_s: float

    def as_json(self) -> dict[str, Any]:
        """Shares from 0 to 1, counts and seconds; times but `seconds` are the model's."""
        outcome, optimum, cache = self.outcome, self.optimum, self.setting.cache
        return {
            "requests": outcome.num_requests,
            "refused": outcome.num_refused,
            "broken_rows": self.num_faults,
            "policy": cache.eviction_policy,
            "num_blocks": cache.num_blocks,
            "block_size": cache.block_size,
            "kv_cache_dtype": cache.kv_cache_dtype,
            "max_num_batched_tokens": self.setting.scheduler.max_num_batched_tokens,
            "max_num_seqs": self.setting.scheduler.max_num_seqs,
            "by_steps": self.by_steps,
            "prompt_tokens": outcome.num_prompt_tokens,
            "hit_tokens": outcome.num_hit_tokens,
            "hit_rate": round(outcome.hit_rate, 6),
            "optimal_hit_rate": None if optimum is None else round(optimum.hit_rate, 6),
            "unbounded_hit_rate": None if optimum is None else round(optimum.unbounded_hit_rate, 6),
            "missed_tokens": outcome.num_prompt_tokens - outcome.num_hit_tokens,
            "missed_tokens_by_cause": by_cause(self.missed),
            "evictions": outcome.num_evictions,
            "preemptions": outcome.num_preemptions,
            "steps": outcome.num_steps,
            "computed_tokens": outcome.num_computed_tokens,
            "output_tokens": outcome.num_output_tokens,
            "output_tokens_per_s": round(outcome.tokens_per_s, 3),
            "span_s": round(outcome.span_s, 6),
            "time_to_first_token_s": _percentiles(outcome.time_to_first_token),
            "end_to_end_s": _percentiles(outcome.end_to_end),
            "block_seconds": {
                tenant: round(each.held_block_seconds, 3)
                for tenant, each in outcome.holdings.items()
            },
            "cached_block_seconds": {
                tenant: round(each.cached_block_seconds, 3)
                for tenant, each in outcome.holdings.items()
            },
            "seconds": round(self.duration_s, 3),
        }


def servers_of(
    caches: Sequence[CacheSetting], schedulers: Sequence[SchedulerSetting]
) -> list[ServerSetting]:
    """Each scheduler over each cache, tried whether it can be. Raises `InvalidOptionError`."""
    settings = [ServerSetting(cache, scheduler) for cache, scheduler in product(caches, schedulers)]
    for setting in settings:
        setting.made()
    return settings


def replay_servers(
    trace: Trace,
    settings: Sequence[ServerSetting],
    cost_of: Callable[[ServerSetting], StepCost],
    *,
    with_optimum: bool = True,
    on_request: Callable[[], None] = lambda: None,
) -> Iterator[ScheduleAnswer]:
    """The answer of each setting, as soon as it is there; `on_request` is called for each request.

    `cost_of` says how long the steps of a setting take.

    Raises `CapacityError` where no request fits.
    """
    optima = Optima(trace, whole_blocks=False, is_wanted=with_optimum)
    for setting in settings:
        by_steps = trace.recorded == setting.as_recorded
        started = time.perf_counter()
        misses, clock = setting.cache.explainer(), Clock()
        replay = ScheduleReplay(
            setting.made([misses], clock.read),
            cost_of(setting),
            max_model_len=setting.max_model_len,
            steps_ahead=setting.scheduler.steps_ahead,
            by_steps=by_steps,
            clock=clock,
        )
        cache = setting.cache
        outcome = replay.run(optima.watched(cache.block_size), on_request)
        duration_s = time.perf_counter() - started
        require_some(cache.num_blocks, outcome.num_requests, outcome.num_refused)
        yield ScheduleAnswer(
            setting=setting,
            outcome=outcome,
            optimum=optima.of(cache.block_size, cache.num_blocks, outcome.refused),
            by_steps=by_steps,
            missed=misses.num_tokens,
            num_faults=trace.faults.count,
            duration_s=duration_s,
        )


def _percentiles(times: Percentiles) -> dict[str, float | None]:
    return {
        name: None if value is None else round(value, 6)
        for name, value in (("p50", times.p50), ("p90", times.p90), ("p99", times.p99))
    }
