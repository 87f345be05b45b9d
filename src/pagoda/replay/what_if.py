"""What each size, policy and block size would have found on one trace.

settings    blocks × policy × block size, each a run of its own
answers     one a setting, with the clairvoyant optimum beside it
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pagoda.cache import EVICTION_POLICIES, CacheManager
from pagoda.cache.explainer import MissExplainer
from pagoda.cache.hashed_tokens import require_block_size
from pagoda.cache.miss import Cause
from pagoda.cache.quota import Quota
from pagoda.cache.watcher import CacheWatcher
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.replay.cache_replay import replay_cache
from pagoda.replay.found import Found
from pagoda.replay.optima import Optima, Optimum
from pagoda.replay.trace import Trace

OnRequest = Callable[[], None]
MOST_BLOCKS = 2**25
"""Of a pool that is tried: many times those of any device."""


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """One cache that is tried; the names are those of the engine's options."""

    num_blocks: int
    block_size: int
    eviction_policy: str
    enable_prefix_caching: bool = True
    kv_cache_dtype: str | None = None
    """How K and V are stored, where that says how many blocks there are."""

    def cache(
        self,
        watchers: Sequence[CacheWatcher] = (),
        quotas: Mapping[str, Quota] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> CacheManager:
        """A new one. Raises `InvalidOptionError` for what cannot be."""
        return CacheManager(
            self.num_blocks,
            self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            eviction=self.eviction_policy,
            watchers=watchers,
            quotas=quotas,
            clock=clock,
        )

    def explainer(self) -> MissExplainer:
        """Who says why so much is missed of such a cache."""
        return MissExplainer(self.num_blocks, self.block_size)


@dataclass(frozen=True, slots=True)
class CacheAnswer:
    """What became of one setting."""

    setting: CacheSetting
    outcome: Found
    optimum: Optimum | None
    """None if it was not asked for, or is too much to work out."""
    missed: Mapping[Cause, int]
    """Tokens of prompts that were not found, by cause."""
    num_faults: int
    """Rows of the trace that could not be read."""
    duration_s: float

    def as_json(self) -> dict[str, Any]:
        """Shares from 0 to 1, counts and seconds."""
        outcome, optimum = self.outcome, self.optimum
        return {
            "requests": outcome.num_requests,
            "refused": outcome.num_refused,
            "broken_rows": self.num_faults,
            "policy": self.setting.eviction_policy,
            "num_blocks": self.setting.num_blocks,
            "block_size": self.setting.block_size,
            "kv_cache_dtype": self.setting.kv_cache_dtype,
            "prompt_tokens": outcome.num_prompt_tokens,
            "hit_tokens": outcome.num_hit_tokens,
            "hit_rate": round(outcome.hit_rate, 6),
            "optimal_hit_rate": None if optimum is None else round(optimum.hit_rate, 6),
            "unbounded_hit_rate": None if optimum is None else round(optimum.unbounded_hit_rate, 6),
            "missed_tokens_by_cause": by_cause(self.missed),
            "evictions": outcome.num_evictions,
            "seconds": round(self.duration_s, 3),
        }


def settings_of(
    num_blocks: Sequence[int],
    block_sizes: Sequence[int],
    policies: Sequence[str],
    unit_size: int,
    kv_cache_dtype: str | None = None,
) -> list[CacheSetting]:
    """All that are asked for, block sizes first, each tried whether it can be.

    Raises `InvalidOptionError` for a size that does not go with the trace's units, and for what no
    cache can be made of.
    """
    settings = [
        CacheSetting(blocks, size, policy, kv_cache_dtype=kv_cache_dtype)
        for size, policy, blocks in product(block_sizes, policies, num_blocks)
    ]
    for setting in settings:
        if setting.num_blocks > MOST_BLOCKS:
            limit = f"at most {MOST_BLOCKS:,}: each takes some 100 bytes of this machine's memory"
            raise InvalidOptionError("num_blocks", setting.num_blocks, limit)
        if setting.block_size < 1:
            raise InvalidOptionError("block_size", setting.block_size, "must be at least 1")
        if setting.eviction_policy not in EVICTION_POLICIES:
            limit = f"one of {', '.join(EVICTION_POLICIES)}"
            raise InvalidOptionError("eviction_policy", setting.eviction_policy, limit)
        require_block_size(setting.block_size, unit_size)
        setting.cache()
    return settings


def replay_caches(
    trace: Trace,
    settings: Sequence[CacheSetting],
    *,
    whole_blocks: bool = True,
    with_optimum: bool = True,
    on_request: OnRequest = lambda: None,
) -> Iterator[CacheAnswer]:
    """The answer of each setting, as soon as it is there; `on_request` is called for each request.

    Raises `CapacityError` where no request fits.
    """
    optima = Optima(trace, whole_blocks, is_wanted=with_optimum)
    for setting in settings:
        started = time.perf_counter()
        requests = optima.watched(setting.block_size)
        misses = setting.explainer()
        cache = setting.cache([misses])
        outcome = replay_cache(requests, cache, whole_blocks=whole_blocks, on_request=on_request)
        duration_s = time.perf_counter() - started
        require_some(setting.num_blocks, outcome.num_requests, outcome.num_refused)
        yield CacheAnswer(
            setting=setting,
            outcome=outcome,
            optimum=optima.of(setting.block_size, setting.num_blocks, outcome.refused),
            missed=misses.num_tokens,
            num_faults=trace.faults.count,
            duration_s=duration_s,
        )


def by_cause(missed: Mapping[Cause, int]) -> dict[str, int]:
    """The causes that there were."""
    return {cause.value: number for cause, number in missed.items() if number}


def require_some(num_blocks: int, num_requests: int, num_refused: int) -> None:
    """Raises `CapacityError` if no request of those there are fits."""
    if num_refused and not num_requests:
        limit = f"none of {num_refused:,} requests fits: each needs more blocks"
        raise CapacityError("num_blocks", num_blocks, limit)
