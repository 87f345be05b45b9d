"""Requests that wait for a place rather than for the machine."""

from __future__ import annotations

import math

from pagoda.doctor.diagnosis import Advice, Evidence, Finding
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.headroom import (
    has_room,
    is_held_back,
    more_room,
    narrower,
    num_fitting,
)
from pagoda.doctor.retention import keeping_less
from pagoda.doctor.vocabulary import FLAGS
from pagoda.doctor.wording import count, percent


def queueing(engine: str, traffic: Traffic, cache: Cache, verdict: str) -> Finding | None:
    """A limit on sequences or the pool holds requests back; None where neither does.

    `verdict` is the answer to what bounds the engine: where prompts do, a queue is theirs.
    """
    if verdict in ("idle", "prefill") or not is_held_back(traffic, cache):
        return None
    if has_room(traffic, cache):
        return _seats(engine, traffic, cache)
    return _full(engine, traffic, cache)  # more at once would only preempt one another


def _seats(engine: str, traffic: Traffic, cache: Cache) -> Finding:
    flag = FLAGS[engine].seats
    now = traffic.running.most
    wanted = math.ceil(now + traffic.waiting.most)
    fitting = num_fitting(traffic, cache)
    then = wanted if fitting is None else min(wanted, fitting)
    proposed = then // cache.num_replicas
    usage = cache.usage.most if cache.usage is not None else 0.0
    summary = (
        f"{count(now)} sequences run, never more, and {count(traffic.waiting.mean)} requests wait "
        f"while {percent(1 - usage)} of the cache is free: their number is limited, not their room."
    )
    effect = (
        f"While answers are bound by reading the weights, a step serves {then} sequences in "
        f"little more time than {count(now)}: up to {then / now:.1f} times the tokens a second."
    )
    advice = Advice(
        "flag",
        f"Let more run at once: {flag} {proposed}.",
        effect,
        flag,
        count(now / cache.num_replicas),
        str(proposed),
    )
    return Finding(
        "too_few_seats", "change", summary, "medium", (advice,), _evidence(engine, traffic, cache)
    )


def _full(engine: str, traffic: Traffic, cache: Cache) -> Finding:
    usage = cache.usage.mean if cache.usage is not None else 1.0
    advice = (
        more_room(engine, traffic, cache),
        *narrower(engine, cache),
        *keeping_less(engine, traffic, cache),
    )
    summary = (
        f"{count(traffic.waiting.mean)} requests wait, and the cache has no room for more of them "
        f"at most times ({percent(usage)} held in the mean)."
    )
    return Finding(
        "pool_full", "change", summary, "high", advice, _evidence(engine, traffic, cache)
    )


def _evidence(engine: str, traffic: Traffic, cache: Cache) -> tuple[Evidence, ...]:
    shown = [
        Evidence(f"{engine}:num_requests_running", traffic.running.most, "requests", "at most"),
        Evidence(f"{engine}:num_requests_waiting", traffic.waiting.mean, "requests", "in the mean"),
        Evidence(
            f"{engine}:num_requests_waiting",
            traffic.waiting_share,
            "share",
            "of scrapes in which one waited",
        ),
    ]
    if cache.usage is not None:
        shown.append(
            Evidence(f"{engine}:kv_cache_usage_perc", cache.usage.most, "share", "held at most")
        )
    return tuple(shown)
