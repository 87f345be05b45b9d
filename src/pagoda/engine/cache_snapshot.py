"""The cache at one moment, and who is in it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagoda.cache import CacheManager
from pagoda.cache.accounts import Holding
from pagoda.cache.explainer import MissExplainer
from pagoda.cache.lookup_counts import LookupCounts
from pagoda.cache.snapshot import PoolSnapshot
from pagoda.scheduling import Sequence as RunningSequence
from pagoda.scheduling.sequence import Status


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSnapshot:
    """A running sequence and its block table. Tokens, unless a name says otherwise."""

    request_id: str
    index: int
    """Which of the request's choices it is."""
    tenant: str
    num_computed: int
    num_tokens: int
    num_prompt: int
    num_cached: int
    """Of the prompt, what came from a hit when the sequence first began."""
    block_ids: NDArray[np.int32]
    """-1 for a block that a window let go."""

    @classmethod
    def of(cls, sequence: RunningSequence) -> SequenceSnapshot:
        return cls(
            sequence.request.request_id,
            sequence.index,
            sequence.tenant,
            sequence.num_computed_tokens,
            sequence.num_tokens,
            sequence.num_prompt_tokens,
            sequence.num_cached_tokens,
            sequence.table.snapshot(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class CacheSnapshot:
    """As it is between two steps."""

    block_size: int
    pool: PoolSnapshot
    holdings: Mapping[str, Holding]
    """By tenant."""
    sequences: Sequence[SequenceSnapshot]
    """Those that run, in the order in which their requests came."""
    num_waiting: Mapping[str, int]
    """Sequences that wait, by tenant."""
    lookups: LookupCounts
    lookups_of: Mapping[str, LookupCounts]
    """By tenant, as it may know them."""
    num_hinted: int
    """Blocks that the policy has given up and hints keep."""
    took_s: float
    """Seconds of the engine's thread."""

    @classmethod
    def of(
        cls, cache: CacheManager, unfinished: Iterable[RunningSequence], misses: MissExplainer
    ) -> CacheSnapshot:
        """As of now. `misses` watches the cache."""
        began = time.perf_counter()
        running, waiting = [], Counter[str]()
        for sequence in unfinished:
            if sequence.status is Status.RUNNING:
                running.append(SequenceSnapshot.of(sequence))
            else:
                waiting[sequence.tenant] += 1
        holdings, pool = cache.holdings(), cache.snapshot()
        return cls(
            cache.block_size,
            pool,
            holdings,
            running,
            waiting,
            misses.counts(),
            {tenant: misses.counts_of(tenant) for tenant in holdings},
            cache.stats().hints.num_kept,
            time.perf_counter() - began,
        )
