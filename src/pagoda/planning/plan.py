"""The plan: from a model, a machine and flags to what fits, what is printed and how fast it can be.

    memory of a device × utilization
      - weights - activations - runtime - CUDA graphs        ranges, keyed by release
      = memory for the cache, // bytes of a block            exact: `pagoda.planning.pool`
      = blocks -> tokens, concurrency, users, longest context

Every figure that depends on a range is given at both ends; where the memory of the cache was said
(`--kv-cache-memory-bytes`) both are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.cache.formats import canonical
from pagoda.cache.groups import CacheGroup
from pagoda.cache.layers import SlidingWindowLayerSpec
from pagoda.errors import CapacityError, RefusedError
from pagoda.planning.budget import (
    cache_bytes,
    narrowest_stage,
    require_room,
    stage_memories,
)
from pagoda.planning.capability import refusals
from pagoda.planning.groups import GroupedPool, kinds_of
from pagoda.planning.memory import MemoryPart, StageMemory
from pagoda.planning.question import PoolQuestion
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import GroupFigures, Plan, PoolFigures
from pagoda.planning.speed import SpeedBound, speed_bound
from pagoda.planning.subject import Subject, read_subject
from pagoda.planning.tier_worth import tier_worths
from pagoda.sizing.capacity import GIB


def make_plan(facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None = None) -> Plan:
    """The plan of a model on a machine; `draft` is a speculative model beside it.

    Raises `InvalidOptionError` for flags that cannot be, `ModelError` for a config that cannot be
    read, `CapacityError` saying how much is missing where it does not fit.
    """
    subject = read_subject(facts, request, draft)
    pool = subject.pool
    stages = stage_memories(subject)
    low, high = _pools(subject, stages)
    speed = _speed(subject, high)
    refused = tuple(_refusals(subject))
    return Plan(
        model=facts.name,
        source=facts.source,
        model_type=subject.model.model_type,
        engine=subject.engine.title,
        release=subject.engine.rules,
        gpu=None if subject.device is None else subject.device.name,
        num_devices=request.num_devices,
        tensor_parallel_size=request.tensor_parallel_size,
        pipeline_parallel_size=request.pipeline_parallel_size,
        dtype=subject.dtype,
        quantization=subject.quantization,
        kv_cache_dtype=request.kv_cache_dtype,
        kv_retention=request.kv_retention,
        block_size=pool.block_size,
        max_model_len=subject.max_model_len,
        context=subject.context,
        users_wanted=request.users,
        shared_prefix=request.shared_prefix,
        parameters=subject.weights.parameters.total,
        active_parameters=subject.weights.parameters.visited,
        weights_bytes=subject.weights.total_bytes,
        layer_kinds=dict(kinds_of(subject.model.cached_layers)),
        groups=tuple(_group(group, subject) for group in pool.groups),
        block_bytes=pool.block_bytes,
        token_bytes=_token_bytes(pool),
        sequence_bytes=pool.num_blocks(subject.max_model_len) * pool.block_bytes,
        memory=_memory(subject, stages, low, high),
        device_bytes=subject.device_bytes,
        low=low,
        high=high,
        is_exact=low is not None and low == high,
        speed=speed,
        cost_per_user=_cost_per_user(request, low, high),
        cost_per_million_tokens=_token_cost(request, speed),
        warnings=(*subject.warnings, *refused, *_shortages(subject, low, high)),
        refusals=refused,
        tiers=tier_worths(subject),
    )


def plan_that_starts(
    facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None = None
) -> Plan | None:
    """The plan; None where `make_plan` refuses it, or the engine certainly would not start."""
    try:
        plan = make_plan(facts, request, draft)
    except RefusedError:
        return None
    return None if plan.refusals else plan


@dataclass(frozen=True, slots=True)
class LongestRequests:
    """Tokens of the longest request of a machine; 0: not one token."""

    certain: int
    """The longest that is served even where all else takes most."""
    perhaps: int
    """The longest with which the engine starts where all else takes least: what it tells."""


def longest_requests(
    facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None = None
) -> LongestRequests:
    """The longest requests that fit, whatever `max_model_len` asks for.

    Raises as `make_plan`, but for what does not fit.
    """
    subject = read_subject(facts, request, draft)
    pool = subject.pool
    stages = stage_memories(subject)
    stated = request.cache_size.stated_bytes(pool.block_bytes)
    if stated is not None:
        low = high = pool.num_blocks_in(stated)
    elif stages:
        low, high = (
            pool.num_blocks_in(cache_bytes(subject, stages, least=least)) for least in (True, False)
        )
    else:
        return LongestRequests(0, 0)
    most = subject.longest or pool.longest
    return LongestRequests(
        certain=min(most, pool.longest_context(low, users=1)),
        perhaps=min(most, pool.longest_request(high)),
    )


def _pools(
    subject: Subject, stages: tuple[StageMemory, ...]
) -> tuple[PoolFigures | None, PoolFigures | None]:
    """What fits where everything else takes most, and where it takes least."""
    request = subject.request
    question = PoolQuestion(
        pool=subject.pool,
        engine=subject.engine,
        device="CPU" if subject.on_cpu else "GPU",
        max_model_len=subject.max_model_len,
        context=subject.context,
        users=request.users or 1,
        shared_prefix=request.shared_prefix,
        max_num_seqs=subject.batch[1],
        made_for=subject.made_for,
        tells_memory=subject.engine.is_pagoda or not request.states_cache,
    )
    stated = request.cache_size.stated_bytes(subject.pool.block_bytes)
    if stated is not None:
        exact = question.answer(stated, must_fit=True)
        require_room(subject, stages, exact.num_blocks)
        return exact, exact
    if not stages:
        return None, None
    for stage in stages:
        stage.require_room(subject.facts.name, subject.devices)
    try:
        high = question.answer(cache_bytes(subject, stages, least=False), must_fit=True)
    except CapacityError as error:
        limit = f"Even where all else takes least: {error.limit}"
        raise CapacityError(error.field, error.value, limit) from None
    low = question.answer(cache_bytes(subject, stages, least=True), must_fit=False)
    return low, high


def _refusals(subject: Subject) -> list[str]:
    """What the device certainly cannot do. An own dtype that it lacks vLLM replaces by another.

    Earlier releases could fall back on an engine and kernels that took more.
    """
    release = subject.engine.vllm
    if subject.device is None or release is None or not release.runs_ahead:
        return []
    request = subject.request
    return refusals(
        subject.device,
        dtype=canonical(request.dtype),
        quantization=subject.quantization,
        kv_cache_dtype=request.kv_cache_dtype,
        block_size=request.block_size,
    )


def _shortages(subject: Subject, low: PoolFigures | None, high: PoolFigures | None) -> list[str]:
    """What does not fit, or may not, and by how much."""
    if low is None or high is None:
        return []
    short: list[str] = []
    pool, request = subject.pool, subject.request
    if low.concurrency < 1:
        short.append(
            f"one request of {subject.max_model_len:,} tokens perhaps fits: only if activations "
            "and runtime stay near their lower bounds"
        )
    wanted, most_at_once = request.users, subject.batch.max_num_seqs
    said = _said_of_users(subject)
    if wanted is not None and wanted > most_at_once:
        name = said or "max_num_seqs"
        short.append(f"{wanted:,} users do not run at once: {name} is {most_at_once:,}")
    elif wanted is None and said is None and high.users == most_at_once:
        short.append(f"users are bound by max_num_seqs, {most_at_once:,} where nothing is said")
    held_low, held_high = (
        pool.num_users(end.num_blocks, subject.context, request.shared_prefix)
        for end in (low, high)
    )
    if wanted is not None and wanted > held_low:
        shared = pool.shared_blocks(request.shared_prefix)
        own = pool.num_blocks(subject.context) - shared
        blocks = shared + own * wanted + pool.reserved_blocks
        least, most = ((blocks - end.num_blocks) * pool.block_bytes / GIB for end in (high, low))
        missing = f"{least:,.2f}" if low == high else f"{least:,.2f} – {most:,.2f}"
        never = wanted > held_high
        short.append(
            f"{wanted:,} users of {subject.context:,} tokens {'do' if never else 'may'} not fit: "
            f"{missing if never else f'up to {most:,.2f}'} GiB are missing on each device"
        )
    return short


def _said_of_users(subject: Subject) -> str | None:
    """The option that bounds how many run at once; None: the device's default does."""
    most, request = subject.batch.max_num_seqs, subject.request
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if getattr(request, name) == most:
            return name
    return None


def _memory(
    subject: Subject,
    stages: tuple[StageMemory, ...],
    low: PoolFigures | None,
    high: PoolFigures | None,
) -> tuple[MemoryPart, ...]:
    """Where the memory goes on a device of the stage that holds fewest blocks."""
    if not stages or low is None or high is None:
        return ()
    index = narrowest_stage(subject, stages)
    stage, size = stages[index], subject.pool.stage_block_bytes[index]
    cache = MemoryPart("KV cache", low.num_blocks * size, high.num_blocks * size, "whole blocks")
    kept = stage.total_bytes - stage.requested_bytes
    if subject.request.states_cache or not kept:  # a cache that is stated heeds no utilization
        return (*stage.parts, cache)
    left = MemoryPart("left by utilization", kept, kept, f"1 - {stage.utilization:g}")
    return (*stage.parts, cache, left)


def _speed(subject: Subject, high: PoolFigures | None) -> SpeedBound | None:
    if subject.device is None or subject.draft_weights is not None:
        return None  # with a draft a step may give several tokens, and how many is not known
    wanted = subject.request.users
    most = high.users if high else min(wanted or 1, subject.batch[1])
    return speed_bound(
        subject.weights,
        subject.kept_layers,
        subject.options,
        subject.device,
        model=subject.model,
        users=max(1, min(most, wanted or most)),
        context=subject.context,
        quantization=subject.quantization,
    )


def _cost_per_user(
    request: PlanRequest, low: PoolFigures | None, high: PoolFigures | None
) -> tuple[float, float] | None:
    if request.price is None or low is None or high is None or not low.users:
        return None
    hourly = request.price * request.num_devices
    fewest, most = (min(end.users, request.users or end.users) for end in (low, high))
    return hourly / fewest, hourly / most


def _token_cost(request: PlanRequest, speed: SpeedBound | None) -> float | None:
    if request.price is None or speed is None:
        return None
    return request.price * request.num_devices / (speed.total_tokens_per_s * 3600) * 1e6


def _group(group: CacheGroup, subject: Subject) -> GroupFigures:
    under_way = subject.pool.under_way_tokens
    layer = group.layer
    kept = layer.window if isinstance(layer, SlidingWindowLayerSpec) else None
    return GroupFigures(
        kind=layer.kind,
        window=None if kept is None else kept.window,
        sinks=0 if kept is None else kept.sinks,
        num_layers=len(group.layer_ids),
        block_size=group.block_size,
        page_bytes=max(group.page_bytes),
        blocks_per_request=group.num_blocks(subject.max_model_len, under_way),
    )


def _token_bytes(pool: GroupedPool) -> float:
    """block bytes × the blocks that one more token adds where no window bounds them."""
    growing = [group for group in pool.groups if group.layer.shares_blocks_with == ("full",)]
    return sum(pool.block_bytes / group.block_size for group in growing)
