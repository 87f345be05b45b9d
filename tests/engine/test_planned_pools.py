"""What a plan says of windows is what sequences need: none more fits, and none is preempted."""

from __future__ import annotations

import pytest
from served_at_once import most_running

from pagoda.cache import CacheManager
from pagoda.models.registry import decoder_spec
from pagoda.planning.plan import make_plan
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.tables import find_model
from pagoda.scheduling import Scheduler

LENGTH, NUM_SEQUENCES, AT_ONCE = 8192, 16, 2048


@pytest.mark.parametrize("name", ["google/gemma-3-4b-it", "openai/gpt-oss-20b"])
def test_16_sequences_of_8192_tokens_fit_into_what_the_plan_says(name: str) -> None:
    row = find_model(name)
    assert row is not None
    facts = ModelFacts.of_row(*row)
    spec = decoder_spec(facts.config).cache_spec(16, "bfloat16", under_way_tokens=AT_ONCE)
    needed = NUM_SEQUENCES * spec.num_blocks(LENGTH)
    asked = PlanRequest(
        engine="pagoda",
        kv_cache_memory_bytes=needed * spec.block_bytes,
        max_model_len=LENGTH,
        max_num_batched_tokens=AT_ONCE,
        max_num_seqs=NUM_SEQUENCES,
        block_size=16,
        dtype="bfloat16",
        gpu="DESKTOP-DDR5",
    )
    plan = make_plan(facts, asked)
    assert plan.high is not None
    assert plan.high.num_blocks == needed
    assert plan.high.concurrency == pytest.approx(NUM_SEQUENCES)
    whole = NUM_SEQUENCES * LENGTH // 16 * sum(layer.block_bytes(16) for layer in spec.layers)
    assert needed * spec.block_bytes < 0.65 * whole

    cache = CacheManager(needed, 16, windows=spec.windows, under_way_tokens=spec.under_way_tokens)
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=AT_ONCE,
        max_num_seqs=NUM_SEQUENCES,
        max_model_len=LENGTH,
    )
    assert most_running(cache, scheduler, NUM_SEQUENCES, LENGTH - 200, 200) == NUM_SEQUENCES
    assert scheduler.stats().num_preemptions == 0
