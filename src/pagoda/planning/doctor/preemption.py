"""Sequences that lose their blocks to others, and compute everything again."""

from __future__ import annotations

import math

from pagoda.planning.doctor.bandwidth import Machine
from pagoda.planning.doctor.diagnosis import Advice, Evidence, Finding
from pagoda.planning.doctor.figures import Cache, Traffic
from pagoda.planning.doctor.vocabulary import FLAGS, Flags
from pagoda.planning.doctor.wording import count, percent

_SOME, _SHARE = 3, 0.05
"""Preemptions, in all and for each request, from which something should change."""
_FILLED = 0.95
"""How much of the cache is planned with."""
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
        again = (
            f" About {count(twice)} tokens were computed a second time, "
            f"{percent(twice / total)} of all, less what the prefix cache still had."
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
        _advice(engine, traffic, cache, machine) if thrashes else (),
        _evidence(engine, traffic, cache, twice),
    )


def recomputed(traffic: Traffic, cache: Cache) -> float | None:
    """Tokens computed twice: as steps tell, else what a running sequence holds, for each one."""
    if cache.recomputed_tokens is not None:
        return cache.recomputed_tokens
    if cache.preemptions and cache.usage and cache.num_tokens and traffic.running.mean > 0:
        return cache.preemptions * cache.usage.mean * cache.num_tokens / traffic.running.mean
    return None


def _advice(engine: str, traffic: Traffic, cache: Cache, machine: Machine) -> tuple[Advice, ...]:
    flags = FLAGS[engine]
    final = traffic.final_tokens
    if final is None or cache.num_tokens is None or cache.block_size is None:
        return (_more_room_unmeasured(flags),)
    wanted = traffic.running.mean + traffic.waiting.mean
    each = final + cache.block_size / 2
    room = [_more_room(flags, cache, machine, wanted, each)]
    fewer = _fewer_at_once(flags, traffic, cache, each)
    halved = flags.kv_dtype and cache.dtype in ("auto", "bfloat16", "float16", None)
    narrow = [_narrower(flags.kv_dtype, cache)] if flags.kv_dtype and halved else []
    if cache.utilization is not None and cache.utilization >= _GENEROUS and not cache.overridden:
        return (*fewer, *narrow, *room)
    return (*room, *fewer, *narrow)


def _more_room(flags: Flags, cache: Cache, machine: Machine, wanted: float, each: float) -> Advice:
    assert cache.num_tokens is not None
    assert cache.block_size is not None
    num_tokens = wanted * each / _FILLED
    num_blocks = math.ceil(num_tokens / cache.block_size)
    times = num_tokens / cache.num_tokens
    effect = (
        f"The {count(wanted)} requests that were there at once, of {count(each)} tokens in the "
        f"end, then fit together. It costs {count(times)} times the memory of today's cache."
    )
    flag, current, proposed = flags.num_blocks, str(cache.num_blocks), str(num_blocks)
    if machine.kv_token_bytes is not None and not cache.overridden:
        flag = flags.memory
        current = str(cache.num_tokens * machine.kv_token_bytes)
        proposed = str(num_blocks * cache.block_size * machine.kv_token_bytes)
    action = f"Give the cache room for {count(num_tokens)} tokens: {flag} {proposed}"
    action += f" in place of {current}."
    return Advice("flag", action, effect, flag, current, proposed)


def _more_room_unmeasured(flags: Flags) -> Advice:
    return Advice(
        "flag",
        f"Give the cache more memory ({flags.memory}), or let fewer run at once ({flags.seats}).",
        "How much cannot be told: no request ended, or the engine does not tell its cache's size.",
        flags.memory,
    )


def _fewer_at_once(flags: Flags, traffic: Traffic, cache: Cache, each: float) -> list[Advice]:
    assert cache.num_tokens is not None
    fitting = int(_FILLED * cache.num_tokens / each)
    if not 1 <= fitting < traffic.running.most:
        return []
    return [
        Advice(
            "flag",
            f"Let no more run at once than fit to their ends: {flags.seats} {fitting}.",
            "Costs no memory. Nothing is computed twice any more; who does not fit waits instead.",
            flags.seats,
            f"at least {count(traffic.running.most)}",
            str(fitting),
        )
    ]


def _narrower(flag: str, cache: Cache) -> Advice:
    return Advice(
        "flag",
        f"Store K and V in half the bytes: {flag} fp8.",
        "The same memory holds twice the tokens. Answers may change a little: compare them first.",
        flag,
        cache.dtype,
        "fp8",
    )


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
