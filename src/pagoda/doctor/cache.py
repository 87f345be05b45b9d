"""What the KV cache is doing: its size, how full, fragmented and reused, how often it preempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagoda.doctor.diagnosis import Answer, Evidence, Finding
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.other_sizes import METRIC
from pagoda.doctor.wording import count, percent, seconds

_VERDICTS = {
    "preemptions": "thrashing",
    "pool_full": "full",
    "small_cache": "small",
    "prefix_caching_off": "off",
    "unstable_prefix": "unused",
    "no_reuse": "unused",
    "passed_prefix": "unused",
}
"""The first finding of these, of those that there are, tells the verdict."""


def cache_answer(
    engine: str, traffic: Traffic, cache: Cache, findings: Sequence[Finding]
) -> Answer:
    """One line on the cache, and its figures."""
    few = {f.code for f in findings if f.severity == "note"} & {"preemptions", "small_cache"}
    found = {finding.code for finding in findings} - few
    verdicts = [verdict for code, verdict in _VERDICTS.items() if code in found]
    sentences = [*_size(cache), *_fullness(traffic, cache), *_reuse(cache), *_residency(cache)]
    summary = "; ".join(sentences) + "." if sentences else "The engine tells nothing of its cache."
    verdict = "unknown" if not sentences else verdicts[0] if verdicts else "fine"
    return Answer("cache", verdict, summary, "high", tuple(_evidence(engine, traffic, cache)))


def waste(traffic: Traffic, cache: Cache) -> float | None:
    """Most tokens' worth of room that lies in blocks not yet full, as a share of what is held."""
    if cache.block_size is None or cache.usage is None or cache.num_tokens is None:
        return None
    held = cache.usage.mean * cache.num_tokens
    if held <= 0:
        return None
    return min(traffic.running.mean * (cache.block_size - 1) / held, 1.0)


def _size(cache: Cache) -> Iterator[str]:
    if cache.fitting_tokens is not None and cache.num_blocks is not None:
        yield (
            f"{count(cache.fitting_tokens)} tokens fit, in {count(cache.num_blocks)} blocks of "
            f"{cache.block_size}"
        )
    if cache.kept is not None and cache.kept.num_tokens is not None:
        yield f"{count(cache.kept.num_tokens)} tokens of each sequence stay ({cache.kept.name})"


def _fullness(traffic: Traffic, cache: Cache) -> Iterator[str]:
    if cache.usage is not None:
        yield f"{percent(cache.usage.mean)} held in the mean, {percent(cache.usage.most)} at most"
    most = waste(traffic, cache)
    if most is not None:
        yield f"of that at most {percent(most)} wasted in blocks not yet full"


def _reuse(cache: Cache) -> Iterator[str]:
    if cache.prefix_caching is False:
        yield "prefix caching is off"
    elif cache.hit_rate is not None and cache.queries is not None:
        looked_up = f"{count(cache.queries)} tokens looked up"
        yield f"of {looked_up}, {percent(cache.hit_rate)} found"
    elif cache.queries is not None:
        yield "nothing looked up"
    twice = None if cache.other_sizes is None else cache.other_sizes.at(2)
    if twice is not None:
        yield f"twice the memory would find {percent(twice)}"
    if cache.preemptions is not None:
        yield f"{count(cache.preemptions)} preemptions" if cache.preemptions else "no preemptions"


def _residency(cache: Cache) -> Iterator[str]:
    for residence in _residences(cache):
        yield f"{residence.meaning} {seconds(residence.value)} in the mean"


def _residences(cache: Cache, engine: str = "") -> Iterator[Evidence]:
    """Means of how long blocks live, where the engine samples it."""
    measured = (
        ("kv_block_lifetime_seconds", cache.lifetime, "a block lived"),
        ("kv_block_idle_before_evict_seconds", cache.idle_before_evict, "evicted after an idle"),
        ("kv_block_reuse_gap_seconds", cache.reuse_gap, "used again after"),
    )
    for name, distribution, meaning in measured:
        if distribution is not None and distribution.mean is not None:
            yield Evidence(f"{engine}:{name}", distribution.mean, "s", meaning)


def _evidence(engine: str, traffic: Traffic, cache: Cache) -> Iterator[Evidence]:
    if cache.fitting_tokens is not None:
        yield Evidence(f"{engine}:cache_config_info", cache.fitting_tokens, "tokens", "fit")
    if cache.usage is not None:
        name = f"{engine}:kv_cache_usage_perc"
        yield Evidence(name, cache.usage.mean, "share", "held in the mean")
        yield Evidence(name, cache.usage.most, "share", "held at most")
    most = waste(traffic, cache)
    if most is not None:
        names = f"{engine}:num_requests_running, {engine}:cache_config_info"
        yield Evidence(names, most, "share", "of that wasted in blocks not yet full, at most")
    if cache.queries is not None and cache.hits is not None:
        yield Evidence(f"{engine}:prefix_cache_queries_total", cache.queries, "tokens", "looked up")
        yield Evidence(f"{engine}:prefix_cache_hits_total", cache.hits, "tokens", "found")
    for multiple, rate in sorted(cache.other_sizes.own.items()) if cache.other_sizes else ():
        meaning = f"would be found with {multiple:g} times the blocks"
        yield Evidence(f"{engine}:{METRIC}", rate, "share", meaning)
    if cache.preemptions is not None:
        yield Evidence(f"{engine}:num_preemptions_total", cache.preemptions, "", "preemptions")
    yield from _residences(cache, engine)
