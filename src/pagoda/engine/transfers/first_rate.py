"""What computing a prompt takes, measured before the first one comes."""

from __future__ import annotations

import time

from pagoda.cache import NO_MATCH, CacheManager
from pagoda.engine.prefill_rate import PrefillRate
from pagoda.engine.runner import Runner
from pagoda.scheduling import ScheduledSequence, StepPlan

_TOKENS = 256
_NUM_RUNS = 3
"""Of which the first may compile something."""


def measure_prefill(
    cache: CacheManager, runner: Runner, most_tokens: int, rate: PrefillRate
) -> None:
    """Note what a step of some tokens takes, `most_tokens` at most, so that what tiers have can be
    judged from the first request on. Nothing runs yet, and nothing is left in the cache."""
    num_tokens = min(_TOKENS, most_tokens)
    table, tokens = cache.open(), [0] * num_tokens
    cache.acquire(table, tokens, NO_MATCH, counted=False)
    if cache.reserve(table, 0, num_tokens) is not None:
        scheduled = ScheduledSequence(
            sequence_id=0,
            stay=0,
            start=0,
            stop=num_tokens,
            token_ids=tuple(tokens),
            block_ids=table.snapshot(),
            windows=table.windows,
            num_logit_rows=1,
            samples=True,
        )
        plan = StepPlan((scheduled,), (), cache.block_size)
        for _ in range(_NUM_RUNS):
            began = time.perf_counter()
            runner.execute(plan, ()).cpu()  # which is there once all is computed
            rate.note(num_tokens, 1, time.perf_counter() - began)
    cache.free(table)
