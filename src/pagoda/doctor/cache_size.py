"""A cache that is smaller than what would be found again, or larger than that needs."""

from __future__ import annotations

import math

from pagoda.doctor.diagnosis import Advice, Evidence, Finding
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.headroom import narrower
from pagoda.doctor.other_sizes import METRIC, OtherSizes
from pagoda.doctor.vocabulary import FLAGS
from pagoda.doctor.wording import count, percent

_MORE = 0.05
"""Share of prompts' tokens, found beside what is found, from which on a size is worth naming."""
_LESS = 0.01
"""What less memory may lose."""
_SHORT, _AMPLE = (2.0, 4.0, 8.0), 0.5
"""Sizes that are proposed, the first that is worth it."""
_WORTH = 0.1
"""Share of the working time from which on a cache should change."""


def cache_size(
    engine: str, traffic: Traffic, cache: Cache, prefill_share: tuple[float, float]
) -> Finding | None:
    """More memory would find more, or less as much; None where neither is told."""
    sizes = cache.other_sizes
    if sizes is None:
        return None
    for multiple in _SHORT:
        then = sizes.at(multiple)
        if then is not None and then >= sizes.now + _MORE:
            return _short(engine, cache, sizes, multiple, then, prefill_share)
    then = sizes.at(_AMPLE)
    is_spare = cache.usage is not None and cache.usage.most <= _AMPLE and not cache.preemptions
    is_spare = is_spare and _has_room_for_longest(cache)
    if then is not None and then >= sizes.now - _LESS and is_spare and sizes.now > 0:
        return _ample(engine, cache, sizes, then)
    return None


def _short(
    engine: str,
    cache: Cache,
    sizes: OtherSizes,
    multiple: float,
    then: float,
    prefill_share: tuple[float, float],
) -> Finding:
    saved = (then - sizes.now) / (1 - sizes.now) * prefill_share[1]
    time = f"and up to {percent(saved)} of the working time is saved" if saved else "no time saved"
    effect = (
        f"{percent(then)} of prompts' tokens would be found in place of {percent(sizes.now)}, "
        f"{time}. It costs {count(multiple)} times the memory of today's cache."
    )
    advice = [_resized(engine, cache, multiple, effect), *narrower(engine, cache)]
    if sizes.lru.get(1.0, 0.0) >= sizes.now + _MORE:
        advice.insert(0, _by_lru(sizes))
    return Finding(
        "small_cache",
        "change" if saved >= _WORTH else "note",
        f"Prompts were there and were forgotten: {percent(sizes.now)} of their tokens are found, "
        f"and {count(multiple)} times the memory would find {percent(then)}.",
        "medium",
        tuple(advice),
        _evidence(engine, sizes, multiple, then),
    )


def _has_room_for_longest(cache: Cache) -> bool:
    """A replica with half its tokens starts, as far as is known."""
    if cache.max_model_len is None or cache.fitting_tokens is None:
        return True
    return _AMPLE * cache.fitting_tokens / cache.num_replicas >= cache.max_model_len


def _ample(engine: str, cache: Cache, sizes: OtherSizes, then: float) -> Finding:
    effect = "It frees half of the cache's memory; a peak of requests has less room then."
    if cache.max_model_len is None or cache.fitting_tokens is None:
        effect += " The server starts only where one request of its longest length fits in."
    return Finding(
        "large_cache",
        "note",
        f"Half the memory would find as much: {percent(then)} of prompts' tokens, where "
        f"{percent(sizes.now)} are found.",
        "medium",
        (_resized(engine, cache, _AMPLE, effect),),
        _evidence(engine, sizes, _AMPLE, then),
    )


def _resized(engine: str, cache: Cache, multiple: float, effect: str) -> Advice:
    flags = FLAGS[engine]
    if cache.num_blocks is None:
        action = f"Give the cache {multiple:g} times its memory ({flags.memory})."
        return Advice("flag", action, effect, flags.memory)
    now = cache.num_blocks // cache.num_replicas
    then = math.ceil(now * multiple)
    action = f"Give the cache {multiple:g} times its blocks: {flags.num_blocks} {then} in place of "
    return Advice("flag", f"{action}{now}.", effect, flags.num_blocks, str(now), str(then))


def _by_lru(sizes: OtherSizes) -> Advice:
    flag = "--eviction-policy"
    effect = f"{percent(sizes.lru[1.0])} would be found in place of {percent(sizes.now)}."
    action = f"Evict what was used least recently: {flag} lru."
    return Advice("flag", action, effect, flag, sizes.policy, "lru")


def _evidence(engine: str, sizes: OtherSizes, multiple: float, then: float) -> tuple[Evidence, ...]:
    name = f"{engine}:{METRIC}"
    return (
        Evidence(name, sizes.now, "share", "found lately"),
        Evidence(name, then, "share", f"would be found with {multiple:g} times the blocks"),
    )
