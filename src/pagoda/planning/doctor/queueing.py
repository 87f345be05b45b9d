"""Requests that wait for a place rather than for the machine."""

from __future__ import annotations

import math

from pagoda.planning.doctor.bound import waits_for_seats
from pagoda.planning.doctor.diagnosis import Advice, Evidence, Finding
from pagoda.planning.doctor.figures import Cache, Traffic
from pagoda.planning.doctor.vocabulary import FLAGS
from pagoda.planning.doctor.wording import count, percent

_QUEUED, _FULL, _FILLED = 0.8, 0.9, 0.95


def queueing(engine: str, traffic: Traffic, cache: Cache, verdict: str) -> Finding | None:
    """A limit on sequences or the pool holds requests back; None where neither does.

    `verdict` is the answer to what bounds the engine: where prompts do, a queue is theirs.
    """
    if traffic.waiting_share < _QUEUED or cache.preemptions:
        return None
    if verdict == "queue" and waits_for_seats(traffic, cache):
        return _seats(engine, traffic, cache)
    if cache.usage is not None and cache.usage.mean >= _FULL:
        return _full(engine, traffic, cache)
    return None


def _fitting(traffic: Traffic, cache: Cache) -> int | None:
    """Sequences that fit to their ends; None where that cannot be told."""
    final = traffic.final_tokens
    if final is None or cache.num_tokens is None or cache.block_size is None:
        return None
    return int(_FILLED * cache.num_tokens / (final + cache.block_size / 2))


def _seats(engine: str, traffic: Traffic, cache: Cache) -> Finding:
    flag = FLAGS[engine].seats
    now = traffic.running.most
    fitting = _fitting(traffic, cache)
    if fitting is not None and fitting <= now:  # more would only preempt one another
        return _full(engine, traffic, cache)
    wanted = math.ceil(now + traffic.waiting.most)
    proposed = wanted if fitting is None else min(wanted, fitting)
    usage = cache.usage.most if cache.usage is not None else 0.0
    summary = (
        f"{count(now)} sequences run, never more, and {count(traffic.waiting.mean)} requests wait "
        f"while {percent(1 - usage)} of the cache is free: their number is limited, not their room."
    )
    effect = (
        f"While answers are bound by reading the weights, a step serves {proposed} sequences in "
        f"little more time than {count(now)}: up to {proposed / now:.1f} times the tokens a second."
    )
    advice = Advice(
        "flag",
        f"Let more run at once: {flag} {proposed}.",
        effect,
        flag,
        count(now),
        str(proposed),
    )
    return Finding(
        "too_few_seats", "change", summary, "medium", (advice,), _evidence(engine, traffic, cache)
    )


def _full(engine: str, traffic: Traffic, cache: Cache) -> Finding:
    flags = FLAGS[engine]
    usage = cache.usage.mean if cache.usage is not None else 1.0
    wanted = traffic.running.mean + traffic.waiting.mean
    times = wanted / max(traffic.running.mean, 1.0)
    flag = flags.num_blocks if cache.overridden else flags.memory
    current = proposed = None
    how = f"about {times:.1f} times as much"
    if flag == flags.num_blocks and cache.num_blocks is not None:
        current, proposed = str(cache.num_blocks), str(math.ceil(cache.num_blocks * times))
        how = f"{proposed} blocks in place of {current}"
    more = Advice(
        "flag",
        f"Give the cache more memory: {flag}, {how}.",
        f"Up to {times:.1f} times as many requests run at once.",
        flag,
        current,
        proposed,
    )
    advice = [more]
    if flags.kv_dtype is not None and cache.dtype in ("auto", "bfloat16", "float16"):
        effect = "The same memory holds twice the tokens. Answers may change a little."
        action = f"Store K and V in half the bytes: {flags.kv_dtype} fp8."
        advice.append(Advice("flag", action, effect, flags.kv_dtype, cache.dtype, "fp8"))
    summary = (
        f"{count(traffic.waiting.mean)} requests wait, and the cache has no room for more of them "
        f"to their ends ({percent(usage)} held in the mean)."
    )
    return Finding(
        "pool_full", "change", summary, "high", tuple(advice), _evidence(engine, traffic, cache)
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
