"""Prompts whose beginning the cache should know and does not.

Metrics do not show text. What speaks for a beginning that changes, rather than for prompts that
have nothing in common, is put together from what they do show:

    prefix caching is on, prompts are long, next to nothing of them is found
    and it was not forgotten: a block stays longer than the next request takes to come
        a block stays  ≈  tokens that nobody holds / new tokens a second
    and prompts are alike in length, as those behind one long system prompt are

The last one is never proof, so the doctor is never sure.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.doctor.diagnosis import Advice, Evidence, Finding
from pagoda.doctor.figures import Cache, Traffic
from pagoda.doctor.headroom import narrower
from pagoda.doctor.retention import is_longer_than_kept, passed_prefix
from pagoda.doctor.vocabulary import FLAGS
from pagoda.doctor.wording import count, percent, seconds

_LEAST_REQUESTS, _LEAST_QUERIES, _LEAST_PROMPT = 6, 1000, 128
_POOR = 0.15
"""Hit rates below are as good as none."""
_ALIKE, _SAME = 0.25, 1e-4
"""Standard deviation of prompt lengths over their mean."""
_WHOLE = 0.03
"""How far a number of blocks may be from a whole one and count as whole."""
_SOON = 2.0
"""A block that stays this many times longer than the next request takes was not forgotten."""
_WORTH = 0.2
"""Share of the working time from which on prompts are worth changing."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What speaks for and against."""

    mean_prompt: float
    hit_rate: float
    every_s: float
    """Between two requests."""
    stays_s: float | None
    """A block that nobody holds."""
    spread: float | None
    lead: int | None
    """Tokens in whole blocks that every prompt was found to begin with, where all have the same."""
    block_size: int | None
    shared: float
    """Tokens that prompts could have in common at most: the shortest has no more."""

    @property
    def was_kept(self) -> bool:
        return self.stays_s is not None and self.stays_s > _SOON * self.every_s

    @property
    def alike(self) -> bool:
        return self.spread is not None and _SAME < self.spread < _ALIKE


def prefix(
    engine: str, traffic: Traffic, cache: Cache, prefill_share: tuple[float, float]
) -> Finding | None:
    """Prefix caching is off or finds nothing; None where all is well or too little was asked."""
    if is_off(traffic, cache):
        return _off(engine, traffic, cache, prefill_share)
    case = _case(traffic, cache)
    if case is None or case.hit_rate >= _POOR:
        return None
    evidence = _evidence(engine, traffic, cache, case)
    if is_longer_than_kept(cache, case.mean_prompt):
        return passed_prefix(engine, cache, case.mean_prompt, case.hit_rate, evidence)
    likely = case.was_kept and case.alike and prefill_share[1] >= _WORTH
    return Finding(
        "unstable_prefix" if likely else "no_reuse",
        "change" if likely else "note",
        _summary(case),
        "medium" if likely else "low",
        (_advice(case, prefill_share), *_room(engine, cache, case)),
        evidence,
    )


def is_off(traffic: Traffic, cache: Cache) -> bool:
    """The engine says so, or looks nothing up although prompts come and are begun."""
    if cache.prefix_caching is not None:
        return not cache.prefix_caching
    return cache.queries == 0 and traffic.num_started >= _LEAST_REQUESTS


def _case(traffic: Traffic, cache: Cache) -> _Case | None:
    mean_prompt = traffic.prompts.mean if traffic.prompts is not None else None
    if (
        mean_prompt is None
        or cache.hit_rate is None
        or traffic.prompts is None
        or traffic.num_requests < _LEAST_REQUESTS
        or (cache.queries or 0.0) < _LEAST_QUERIES
        or mean_prompt < _LEAST_PROMPT
    ):
        return None
    new_tokens = (traffic.computed_tokens + traffic.generated_tokens) / traffic.duration_s
    stays_s = None
    if cache.num_tokens is not None and cache.usage is not None and new_tokens > 0:
        stays_s = (1 - cache.usage.mean) * cache.num_tokens / new_tokens
    spread = traffic.prompt_spread
    shortest = traffic.prompts.least or 0.0
    if spread is not None:
        shortest = max(shortest, mean_prompt * (1 - 2 * spread))
    return _Case(
        mean_prompt=mean_prompt,
        hit_rate=cache.hit_rate,
        every_s=traffic.duration_s / traffic.num_requests,
        stays_s=stays_s,
        spread=spread,
        lead=_lead(traffic, cache, mean_prompt),
        block_size=cache.block_size,
        shared=min(shortest, mean_prompt),
    )


def _lead(traffic: Traffic, cache: Cache, mean_prompt: float) -> int | None:
    """Found tokens of a lookup, if they come to a whole number of blocks in the mean."""
    if not cache.block_size or not cache.queries or cache.hits is None:
        return None
    blocks = cache.hits / (cache.queries / mean_prompt) / cache.block_size
    whole = round(blocks)
    return whole * cache.block_size if abs(blocks - whole) <= _WHOLE * max(whole, 1) else None


def _summary(case: _Case) -> str:
    alike = " and alike in length" if case.alike else ""
    text = (
        f"Prompts are long ({count(case.mean_prompt)} tokens in the mean){alike}, prefix caching "
        f"is on, and {percent(case.hit_rate)} of their tokens were found. "
    )
    if case.stays_s is not None and case.was_kept:
        text += (
            f"They were not forgotten: a block that nobody holds stays about "
            f"{seconds(case.stays_s)}, and a request comes every {seconds(case.every_s)}. Either "
            "prompts have nothing in common, or something that changes stands before what they do."
        )
    elif case.stays_s is not None:
        text += (
            f"A block that nobody holds stays about {seconds(case.stays_s)} and a request comes "
            f"every {seconds(case.every_s)}: what they share may be forgotten before it is asked "
            "for, or they share nothing, or something that changes stands before it."
        )
    else:
        text += "They share nothing, or something that changes stands before it."
    if case.lead is not None and case.block_size is not None:
        alike_until = (
            f" All begin alike for {case.lead} tokens and"
            if case.lead
            else " In the latter case they"
        )
        text += f"{alike_until} part before token {case.lead + case.block_size}."
    if case.spread is not None and case.spread <= _SAME:
        text += " All are of one length, as load generators make them."
    return text


def _advice(case: _Case, prefill_share: tuple[float, float]) -> Advice:
    share = case.shared / case.mean_prompt
    effect = "How much cannot be told from metrics; a shared beginning is then computed once."
    if share >= 0.1:
        effect = (
            f"At best {_most(share)} of the prompts' tokens need not be computed, and up to "
            f"{percent(share * prefill_share[1])} of the working time is saved; nothing, if they "
            "have nothing in common."
        )
    return Advice(
        "prompts",
        "Look at the first lines of two prompts. A time, an id, a user's name, or tools or JSON in "
        "changing order at the front make all that follows new: move it behind what is the same.",
        effect,
    )


def _room(engine: str, cache: Cache, case: _Case) -> list[Advice]:
    """Where blocks are forgotten so soon: more of them in the same memory."""
    is_short = case.stays_s is not None and not case.was_kept
    return narrower(engine, cache) if is_short else []


def _most(share: float) -> str:
    return "nearly all" if share > 0.95 else percent(share)


def _off(
    engine: str, traffic: Traffic, cache: Cache, prefill_share: tuple[float, float]
) -> Finding:
    flag = FLAGS[engine].prefix_caching
    matters = prefill_share[1] >= _WORTH and traffic.num_requests >= _LEAST_REQUESTS
    advice = Advice(
        "flag",
        f"Turn prefix caching on: {flag}.",
        "What prompts have in common is computed once, up to "
        f"{percent(prefill_share[1])} of the working time; nothing is lost if that is nothing.",
        flag,
        "off",
        "on",
    )
    queries = Evidence(
        f"{engine}:prefix_cache_queries_total", cache.queries or 0.0, "tokens", "looked up"
    )
    computed = Evidence(
        f"{engine}:prompt_tokens_by_source_total", traffic.computed_tokens, "tokens", "computed"
    )
    return Finding(
        "prefix_caching_off",
        "change" if matters else "note",
        "Prefix caching is off: every prompt is computed from its first token.",
        "high" if cache.prefix_caching is not None else "medium",
        (advice,),
        (queries, computed),
    )


def _evidence(engine: str, traffic: Traffic, cache: Cache, case: _Case) -> tuple[Evidence, ...]:
    shown = [
        Evidence(
            f"{engine}:prefix_cache_queries_total", cache.queries or 0.0, "tokens", "looked up"
        ),
        Evidence(f"{engine}:prefix_cache_hits_total", cache.hits or 0.0, "tokens", "found"),
        Evidence(
            f"{engine}:request_prompt_tokens", case.mean_prompt, "tokens", "a prompt in the mean"
        ),
        Evidence(f"{engine}:request_success_total", traffic.num_requests, "requests", "ended"),
    ]
    if case.spread is not None:
        meaning = "standard deviation of prompt lengths over their mean"
        shown.append(Evidence(f"{engine}:request_prompt_tokens", case.spread, "share", meaning))
    if case.stays_s is not None:
        metrics = f"{engine}:cache_config_info, {engine}:kv_cache_usage_perc"
        shown.append(Evidence(metrics, case.stays_s, "s", "that a block stays unheld, about"))
    idle = cache.idle_before_evict
    if idle is not None and idle.mean is not None:
        name = f"{engine}:kv_block_idle_before_evict_seconds"
        shown.append(Evidence(name, idle.mean, "s", "unused before it was evicted, in the mean"))
    return tuple(shown)
