"""What one change would buy: the plan again with a flag more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pagoda.cache.formats import INT8_LATENTS
from pagoda.cache.latent import LatentLayerSpec
from pagoda.errors import CapacityError
from pagoda.planning.plan import make_plan, plan_that_starts
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Alternative, Plan
from pagoda.planning.ways import (
    INT4_WEIGHTS,
    PAGODA_WEIGHTS,
    SMALL_CHECKPOINT,
    flags_of,
    told,
    ways_to_fit,
)

_LARGEST_GROUP = 64
_INT4_CACHE = "int4_per_token_head"
_PAGODA_CACHES = {
    "int8 cache": "int8_per_token_head",
    "int4 cache": "int4",
    "int4 cache, uncalibrated": _INT4_CACHE,
}
_LATENT_CACHES = {"int8 cache": INT8_LATENTS}
"""Where Pagoda keeps latents."""


def plan_with_alternatives(
    facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None = None
) -> Plan:
    """The plan, and beside it what other flags would give.

    Raises as `make_plan`; where the model does not fit the error also says what would make it.
    """
    try:
        plan = make_plan(facts, request, draft)
    except CapacityError as error:
        ways = told(ways_to_fit(facts, request, draft), request)
        raise CapacityError(error.field, error.value, f"{error.limit}. {ways}") from None
    if plan.high is None:
        return plan
    tried = [
        _try(words, change, plan, facts, request, draft)
        for words, change in _changes(request, plan).items()
    ]
    if not request.planned_engine.is_pagoda:
        tried.append(_more_devices(plan, facts, request, draft))
    return replace(plan, alternatives=tuple(found for found in tried if found is not None))


def _changes(request: PlanRequest, plan: Plan) -> dict[str, dict[str, Any]]:
    """Flags to try, by what they are called; those that do not start are left out."""
    changes: dict[str, dict[str, Any]] = {}
    engine = request.planned_engine
    if not engine.is_pagoda:
        if request.kv_cache_dtype == "auto":
            changes["fp8 cache"] = {"kv_cache_dtype": "fp8"}
            has_latents = LatentLayerSpec.kind in plan.layer_kinds
            if not has_latents and engine.knows_format(_INT4_CACHE):
                changes["int4 cache"] = {"kv_cache_dtype": _INT4_CACHE}
        if plan.quantization is None:
            changes["fp8 weights"] = {"quantization": "fp8"}
            changes[SMALL_CHECKPOINT] = dict(INT4_WEIGHTS)
    else:
        if request.kv_cache_dtype == "auto":
            has_latents = LatentLayerSpec.kind in plan.layer_kinds
            caches = _LATENT_CACHES if has_latents else _PAGODA_CACHES
            changes |= {name: {"kv_cache_dtype": each} for name, each in caches.items()}
        if plan.quantization is None:
            changes |= {f"{name} weights": {"quantization": name} for name in PAGODA_WEIGHTS}
    if plan.context > 1:
        half = plan.context // 2
        if request.shared_prefix == 0:
            changes["half of each prompt shared"] = {"shared_prefix": half}
        if half > request.shared_prefix:  # else nothing of a request would be its own
            changes["half the context"] = {"context": half}
    return changes


def _try(
    words: str,
    change: dict[str, Any],
    plan: Plan,
    facts: ModelFacts,
    request: PlanRequest,
    draft: ModelFacts | None,
) -> Alternative | None:
    other = plan_that_starts(facts, replace(request, **change), draft)
    if other is None:
        return None
    flags = "" if change == INT4_WEIGHTS else flags_of(change)
    return _compared(words, flags, plan, other)


def _more_devices(
    plan: Plan, facts: ModelFacts, request: PlanRequest, draft: ModelFacts | None
) -> Alternative | None:
    """The next number of ranks that divides the heads."""
    size = request.tensor_parallel_size
    for larger in range(size + 1, min(2 * size, _LARGEST_GROUP) + 1):
        other = plan_that_starts(facts, replace(request, tensor_parallel_size=larger), draft)
        if other is None:
            continue
        flags = f"--tensor-parallel-size {larger}"
        more = other.num_devices - plan.num_devices
        return _compared(f"{more} more device{'s' if more > 1 else ''}", flags, plan, other)
    return None


def _compared(words: str, flags: str, plan: Plan, other: Plan) -> Alternative | None:
    """None where it would buy nothing."""
    if other.low is None or other.high is None or plan.high is None:
        return None
    ends = ((plan.low or plan.high, other.low), (plan.high, other.high))
    has_more = any(two.users > one.users or two.num_tokens > one.num_tokens for one, two in ends)
    if not has_more or other.high.users < plan.high.users:
        return None
    gain = None
    if plan.high.users:
        gain = other.high.users / plan.high.users
    return Alternative(
        words, flags, other.low.users, other.high.users, other.low.num_tokens,
        other.high.num_tokens, gain,
    )  # fmt: skip
