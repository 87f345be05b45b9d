"""Why a prefix, or no more of it, was not found in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pagoda.cache.origin import NOBODYS, Origin


class Cause(StrEnum):
    """Why tokens were computed that could have been found."""

    NEVER_SEEN = "never_seen"
    """Nothing that went on like this is known."""
    DIVERGED = "diverged"
    """What is cached goes on with other tokens."""
    EVICTED = "evicted"
    """It was there and made room for others, or what comes before it did. In models with windows:
    or a window let it go."""
    NOT_SHARED = "not_shared"
    """It is there, and belongs to another tenant or salt, or was kept by another retention."""
    REMAINDER = "remainder"
    """All full blocks were found; what is left fills none, or is the one token that is always
    computed."""
    UNREAD = "prompt_logprobs"
    """Every logit of the prompt is wanted, so it is computed whole."""
    CACHING_OFF = "caching_off"


@dataclass(frozen=True, slots=True)
class Eviction:
    """When a block went, and for whom."""

    seconds_ago: float
    idle_s: float
    """How long nobody had held it by then."""
    by: Origin
    """Whose sequence took it."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a sequence leaves what is cached."""

    position: int
    """Of the first token that differs."""
    start: int
    """Position of the first of `cached`."""
    cached: tuple[int, ...]
    """Token ids of the cached block that goes along the furthest."""


@dataclass(frozen=True, slots=True)
class Gated:
    """Blocks of a prefix that a tier had, and that were quicker to compute than to load."""

    tier: str
    num_tokens: int
    load_s: float
    """What loading them would have taken, by what was measured."""
    compute_s: float


@dataclass(frozen=True, slots=True)
class Miss:
    """What a sequence did not find when it began."""

    cause: Cause
    """Of the first token that was not found."""
    position: int
    """Of that token, which is the number of those that were."""
    num_tokens: Mapping[Cause, int]
    """Tokens that were not found, by cause; together all of them."""
    eviction: Eviction | None = None
    """Of the first block that was evicted."""
    divergence: Divergence | None = None
    others: tuple[Origin, ...] = ()
    """Who has what is not shared."""
    gated: Gated | None = None
    """What was not in the cache, and was elsewhere."""
    origin: Origin = NOBODYS
    """Whose sequence it is."""

    def without_others(self) -> Miss:
        """What those may be told who may not know what other tenants and salts have."""
        own = self.origin.tenant, self.origin.cache_salt
        others = tuple(each for each in self.others if (each.tenant, each.cache_salt) == own)
        if others == self.others:
            return self
        if others:
            return replace(self, others=others)
        known = Cause.NEVER_SEEN if self.divergence is None else Cause.DIVERGED
        num_tokens = {
            known if cause is Cause.NOT_SHARED else cause: number
            for cause, number in self.num_tokens.items()
        }
        cause = known if self.cause is Cause.NOT_SHARED else self.cause
        return replace(self, cause=cause, num_tokens=num_tokens, others=())
