"""How much room requests want, and the flags that give it.

Flags are of one replica, figures of all together.
"""

from __future__ import annotations

import math

from pagoda.doctor.diagnosis import Advice
from pagoda.doctor.figures import Cache, Narrower, Traffic
from pagoda.doctor.other_sizes import told_rate
from pagoda.doctor.vocabulary import FLAGS
from pagoda.doctor.wording import count
from pagoda.sizing.measured_cost import told_cost

_FILLED = 0.95
"""How much of the cache is planned with."""
_DEVIATIONS = 2.0
_SLIGHTLY = 1.15
"""More than this times what there is must be wanted, or there is another reason."""
_FULL = 0.9
_QUEUED = 0.8
"""Share of scrapes with a queue from which on the queue is taken to stand."""
_STEADY = 0.9
"""Mean of those that run over most, where their number is held by a limit."""
_WIDE = ("auto", "bfloat16", "float16", None)
"""Dtypes of K and V that half the bytes would do for; `auto` is nearly always one."""
_UNTOLD = {"vllm": Narrower("fp8", 2.0)}
"""Of engines that do not tell what narrower K and V would take: half the bytes of such a dtype."""


def num_wanted(traffic: Traffic) -> float:
    """Requests that were there at once, running or not."""
    return traffic.running.mean + traffic.waiting.mean


def tokens_held(
    traffic: Traffic, cache: Cache, num_requests: float, *, in_step: bool = False
) -> float | None:
    """What so many requests hold at nearly all times; None where their lengths are not known.

    Each is somewhere in its answer, whoever else is where: a prompt, half the answer and half a
    block in the mean. Two standard deviations of all together go on top, never more than all ends.
    Those that go `in_step` come to their ends together. No more of one is held than stays of it.
    """
    prompt = traffic.prompts.mean if traffic.prompts is not None else None
    answer = traffic.answers.mean if traffic.answers is not None else None
    if prompt is None or answer is None or cache.block_size is None:
        return None
    most = cache.most_of_sequence
    base = min(prompt + cache.block_size / 2, most)
    answer = min(answer, most - base)
    if in_step:
        return num_requests * (base + answer)
    deviation = answer / math.sqrt(12) * math.sqrt(num_requests)
    return min(
        num_requests * (base + answer / 2) + _DEVIATIONS * deviation,
        num_requests * (base + answer),
    )


def num_fitting(traffic: Traffic, cache: Cache, *, in_step: bool = False) -> int | None:
    """Requests that fit at nearly all times; None where that cannot be told."""
    one = tokens_held(traffic, cache, 1, in_step=in_step)
    if one is None or cache.num_tokens is None:
        return None
    capacity = _FILLED * cache.num_tokens
    fits, too_many = 0, 1 + int(2 * capacity / one)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        held = tokens_held(traffic, cache, middle, in_step=in_step)
        is_fitting = held is not None and held <= capacity
        fits, too_many = (middle, too_many) if is_fitting else (fits, middle)
    return fits


def has_room(traffic: Traffic, cache: Cache) -> bool:
    """More requests than run would fit."""
    if cache.usage is None or cache.usage.mean >= _FULL:
        return False
    fitting = num_fitting(traffic, cache)
    return cache.usage.most < _FULL if fitting is None else fitting > traffic.running.most


def is_held_back(traffic: Traffic, cache: Cache) -> bool:
    """A queue stands while as many run as ever do, and none of them is preempted."""
    return (
        traffic.waiting_share >= _QUEUED
        and not cache.preemptions
        and traffic.running.most > 0
        and traffic.running.mean >= _STEADY * traffic.running.most
    )


def more_room(engine: str, traffic: Traffic, cache: Cache) -> Advice:
    """A cache in which all requests that were there would fit."""
    flags = FLAGS[engine]
    wanted = num_wanted(traffic)
    held = tokens_held(traffic, cache, wanted)
    if held is None or cache.num_tokens is None or cache.num_blocks is None:
        return Advice(
            "flag",
            f"Give the cache more memory ({flags.memory}), or let fewer run at once "
            f"({flags.seats}).",
            "How much cannot be told: no request ended, or the engine does not tell the size.",
            flags.memory,
        )
    if cache.usage is not None:  # what runs may hold more than the mean of what has ended
        now_held = cache.usage.mean * cache.num_tokens
        held = max(held, now_held * wanted / max(traffic.running.mean, 1.0))
    if cache.preemptions and held < _SLIGHTLY * cache.num_tokens:  # which were enough, were it so
        held = tokens_held(traffic, cache, wanted, in_step=True) or held
    num_tokens = held / _FILLED
    times = num_tokens / cache.num_tokens
    # In blocks, as the engine counts them: bytes would rest on what it does not tell.
    flag, now = flags.num_blocks, cache.num_blocks // cache.num_replicas
    then = math.ceil(now * times)
    return Advice(
        "flag",
        f"Give the cache room for {count(num_tokens)} tokens: {flag} {then} in place of {now}.",
        f"The {count(wanted)} requests that were there then fit at nearly all times: none waits "
        "for another's end, and next to nothing is computed twice. It costs "
        f"{times:.1f} times the memory of today's cache.{told_rate(cache.other_sizes, times)}",
        flag,
        str(now),
        str(then),
    )


def fewer_at_once(engine: str, traffic: Traffic, cache: Cache) -> list[Advice]:
    """No more sequences than fit; none where that is what runs."""
    fitting = num_fitting(traffic, cache)
    if fitting is not None and _SLIGHTLY * fitting >= num_wanted(traffic):
        fitting = num_fitting(traffic, cache, in_step=True)
    if fitting is None or not cache.num_replicas <= fitting < traffic.running.most:
        return []
    seats = fitting // cache.num_replicas
    flag = FLAGS[engine].seats
    return [
        Advice(
            "flag",
            f"Let no more run at once than fit at nearly all times: {flag} {seats}.",
            "Costs no memory. Next to nothing is computed twice; who does not fit waits instead, "
            "and with fewer in a step, tokens a second may be fewer too.",
            flag,
            f"at least {math.ceil(traffic.running.most / cache.num_replicas)}",
            str(seats),
        )
    ]


def narrower(engine: str, cache: Cache) -> list[Advice]:
    """K and V in fewer bytes, where the engine can and does not yet."""
    flag, found = FLAGS[engine].kv_dtype, narrower_format(engine, cache)
    if found is None:
        return []
    return [
        Advice(
            "flag",
            f"Store K and V in fewer bytes: {flag} {found.dtype}.",
            f"The same memory would hold {found.times:.3g} times as much. {told_cost(found.dtype)}",
            flag,
            cache.dtype,
            found.dtype,
        )
    ]


def narrower_format(engine: str, cache: Cache) -> Narrower | None:
    """What K and V could be stored as; None where they are narrow, or nothing better is known."""
    return cache.narrower or (_UNTOLD.get(engine) if cache.dtype in _WIDE else None)
