"""How much room requests want to their ends, and the flags that give it.

Flags are of one replica, figures of all together.
"""

from __future__ import annotations

import math

from pagoda.planning.doctor.bandwidth import Machine
from pagoda.planning.doctor.diagnosis import Advice
from pagoda.planning.doctor.figures import Cache, Traffic
from pagoda.planning.doctor.vocabulary import FLAGS
from pagoda.planning.doctor.wording import count

_FILLED = 0.95
"""How much of the cache is planned with."""
_WIDE = ("auto", "bfloat16", "float16", None)
"""Dtypes of K and V that half the bytes would do for; `auto` is nearly always one."""


def num_wanted(traffic: Traffic) -> float:
    """Requests that were there at once, running or not."""
    return traffic.running.mean + traffic.waiting.mean


def tokens_each(traffic: Traffic, cache: Cache) -> float | None:
    """What a mean request takes in the end; half of its last block is empty."""
    if traffic.final_tokens is None or cache.block_size is None:
        return None
    return traffic.final_tokens + cache.block_size / 2


def num_fitting(traffic: Traffic, cache: Cache) -> int | None:
    """Requests that fit to their ends; None where that cannot be told."""
    each = tokens_each(traffic, cache)
    if each is None or cache.num_tokens is None:
        return None
    return int(_FILLED * cache.num_tokens / each)


def more_room(engine: str, traffic: Traffic, cache: Cache, machine: Machine) -> Advice:
    """A cache in which all requests that were there would fit to their ends."""
    flags = FLAGS[engine]
    each = tokens_each(traffic, cache)
    if each is None or cache.num_tokens is None or cache.num_blocks is None:
        return Advice(
            "flag",
            f"Give the cache more memory ({flags.memory}), or let fewer run at once "
            f"({flags.seats}).",
            "How much cannot be told: no request ended, or the engine does not tell the size.",
            flags.memory,
        )
    wanted = num_wanted(traffic)
    num_tokens = wanted * each / _FILLED
    times = num_tokens / cache.num_tokens
    if machine.kv_token_bytes is not None and not cache.overridden:
        flag = flags.memory
        shares = cache.num_replicas * machine.num_accelerators
        now = cache.num_tokens * machine.kv_token_bytes // shares
    else:
        flag, now = flags.num_blocks, cache.num_blocks // cache.num_replicas
    then = math.ceil(now * times)
    return Advice(
        "flag",
        f"Give the cache room for {count(num_tokens)} tokens: {flag} {then} in place of {now}.",
        f"The {count(wanted)} requests that were there at once, of {count(each)} tokens in the "
        f"end, then fit together: none waits for another's end, and nothing is computed twice. It "
        f"costs {times:.1f} times the memory of today's cache.",
        flag,
        str(now),
        str(then),
    )


def fewer_at_once(engine: str, traffic: Traffic, cache: Cache) -> list[Advice]:
    """No more sequences than fit; none where that is what runs."""
    fitting = num_fitting(traffic, cache)
    if fitting is None or not cache.num_replicas <= fitting < traffic.running.most:
        return []
    seats = fitting // cache.num_replicas
    flag = FLAGS[engine].seats
    return [
        Advice(
            "flag",
            f"Let no more run at once than fit to their ends: {flag} {seats}.",
            "Costs no memory. Nothing is computed twice any more; who does not fit waits instead.",
            flag,
            f"at least {math.ceil(traffic.running.most / cache.num_replicas)}",
            str(seats),
        )
    ]


def narrower(engine: str, cache: Cache) -> list[Advice]:
    """K and V in half the bytes, where the engine can and does not yet."""
    flag = FLAGS[engine].kv_dtype
    if flag is None or cache.dtype not in _WIDE:
        return []
    return [
        Advice(
            "flag",
            f"Store K and V in half the bytes: {flag} fp8.",
            "The same memory holds twice the tokens. Answers may change a little: compare first.",
            flag,
            cache.dtype,
            "fp8",
        )
    ]
