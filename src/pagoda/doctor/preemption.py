"""Sequences that lose their blocks to others, and compute everything again."""

from __future__ import annotations

from pagoda.doctor.bandwidth import Machine
from pagoda.doctor.bound import recompute_share
from pagoda.doctor.diagnosis import Advice, Evidence, Finding
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.headroom import fewer_at_once, more_room, narrower
from pagoda.doctor.retention import keeping_less
from pagoda.doctor.wording import count, percent

_SOME, _SHARE = 3, 0.05
"""Preemptions, in all and for each request, from which something should change."""
_GENEROUS = 0.9
"""Share of the accelerator's memory from which on there is little more to give."""


def preemption(engine: str, traffic: Traffic, cache: Cache, machine: Machine) -> Finding | None:
    """The pool thrashes, or begins to; None where nothing was preempted."""
    if not cache.preemptions:
        return None
    for_each = cache.preemptions / max(traffic.num_requests, traffic.num_started, 1.0)
    twice = recomputed(traffic, cache)
    again = ""
    if twice is not None:
        total = twice + traffic.computed_tokens + traffic.generated_tokens
        _, most = recompute_share(traffic, twice, machine.intensity)
        again = (
            f" About {count(twice)} tokens were computed a second time, {percent(twice / total)} "
            f"of all and up to {percent(most)} of the working time, less what the prefix cache "
            "still had."
        )
    summary = (
        f"The cache is too small for what runs at once: {count(cache.preemptions)} preemptions in "
        f"{count(traffic.duration_s)} s, {count(for_each)} for each request.{again}"
    )
    thrashes = cache.preemptions >= _SOME and for_each >= _SHARE
    return Finding(
        "preemptions",
        "change" if thrashes else "note",
        summary,
        "high",
        _advice(engine, traffic, cache) if thrashes else (),
        _evidence(engine, traffic, cache, twice),
    )


def recomputed(traffic: Traffic, cache: Cache) -> float | None:
    """Tokens computed twice: as steps tell, else what a running sequence holds, for each one."""
    if cache.recomputed_tokens is not None:
        return cache.recomputed_tokens
    if cache.preemptions and cache.usage and cache.num_tokens and traffic.running.mean > 0:
        return cache.preemptions * cache.usage.mean * cache.num_tokens / traffic.running.mean
    return None


def _advice(engine: str, traffic: Traffic, cache: Cache) -> tuple[Advice, ...]:
    room = [more_room(engine, traffic, cache)]
    fewer = fewer_at_once(engine, traffic, cache)
    narrow, less = narrower(engine, cache), keeping_less(engine, traffic, cache)
    if cache.utilization is not None and cache.utilization >= _GENEROUS and not cache.overridden:
        return (*fewer, *narrow, *room, *less)
    return (*room, *fewer, *narrow, *less)


def _evidence(
    engine: str, traffic: Traffic, cache: Cache, twice: float | None
) -> tuple[Evidence, ...]:
    shown = [
        Evidence(f"{engine}:num_preemptions_total", cache.preemptions or 0.0, "", "preemptions"),
        Evidence(f"{engine}:request_success_total", traffic.num_requests, "requests", "ended"),
    ]
    if cache.usage is not None:
        shown.append(
            Evidence(f"{engine}:kv_cache_usage_perc", cache.usage.most, "share", "held at most")
        )
    if twice is not None:
        metrics = (
            f"{engine}:iteration_tokens_total_sum"
            if cache.recomputed_tokens is not None
            else f"{engine}:kv_cache_usage_perc, {engine}:num_requests_running"
        )
        shown.append(Evidence(metrics, twice, "tokens", "computed a second time, about"))
    return tuple(shown)
