"""Why a prompt, or no more of it, was found in the cache, as a client is told it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pydantic import BaseModel

from pagoda.cache.miss import Cause, Divergence, Eviction, Gated, Miss
from pagoda.server.keys import Holder
from pagoda.server.left_out import left_out

_SHOWN_TOKENS = 8
"""Of each text that is quoted."""
_OWN, _OTHERS = "your own requests", "others' requests"

TokenBytes = Callable[[int], bytes]


class Evicted(BaseModel):
    """The first block that was there and is not any more. Where others' requests took it, in whole
    seconds: when exactly they did is not for everybody."""

    seconds_ago: float
    idle_seconds: float
    """How long no request had used it by then."""
    to_make_room_for: str
    """Whose request took the block; by name for an operator alone."""


class Diverged(BaseModel):
    """Where the prompt leaves what is cached, in texts of a few tokens."""

    position: int
    """Of the first token that differs; the prompt's first is 0."""
    after: str
    """What comes before, in both."""
    prompt: str
    cached: str


class OnTier(BaseModel):
    """What was not in the cache and lay elsewhere, and was quicker to compute than to load."""

    tier: str
    tokens: int
    load_seconds: float
    compute_seconds: float


class CacheExplanation(BaseModel):
    """What of one prompt was found in the cache, and why no more."""

    prompt_tokens: int
    found_tokens: int
    cause: Cause
    """Why the first token that was not found was not."""
    missed_tokens: dict[Cause, int]
    """Those that were computed, by cause."""
    explanation: str
    """All of it in words."""
    evicted: Evicted | None = left_out()
    diverged: Diverged | None = left_out()
    on_tier: OnTier | None = left_out()
    lossy_form: str | None = left_out()
    """What the tokens that were found may have gone through on a tier: they are near to what was
    computed, and may not be it."""
    kept_apart_by: list[str] | None = left_out()
    """What the prompt has not in common with the same text in the cache: its tenant, its salt or
    its retention."""


class PromptLookup(NamedTuple):
    """What is kept of a prompt's lookup, to be told later."""

    miss: Miss
    num_tokens: int
    after: tuple[int, ...]
    """A few tokens before the prompt leaves what is cached, and from there on."""
    prompt: tuple[int, ...]

    @classmethod
    def of(cls, miss: Miss, token_ids: Sequence[int]) -> PromptLookup:
        if miss.divergence is None:
            return cls(miss, len(token_ids), (), ())
        at = miss.divergence.position
        before, behind = token_ids[max(0, at - _SHOWN_TOKENS) : at], token_ids[at:]
        return cls(miss, len(token_ids), tuple(before), tuple(behind[:_SHOWN_TOKENS]))

    def told(
        self, holder: Holder, token_bytes: TokenBytes, *, lossy_form: str | None
    ) -> CacheExplanation:
        """What `holder` may know of it: text is its own tenant's alone, and what others have an
        operator's. `lossy_form`: that blocks lie in on the engine's tiers."""
        miss = self.miss if holder.is_operator else self.miss.without_others()
        is_own = holder.tenant == miss.origin.tenant
        evicted = None if miss.eviction is None else _evicted(miss, miss.eviction, holder)
        diverged = None
        if miss.divergence is not None and is_own:
            diverged = self._diverged(miss.divergence, token_bytes)
        gone_through = lossy_form if miss.position else None
        apart = min(map(miss.origin.differing, miss.others), key=len, default=())
        return CacheExplanation(
            prompt_tokens=self.num_tokens,
            found_tokens=miss.position,
            cause=miss.cause,
            missed_tokens=dict(miss.num_tokens),
            explanation=self._words(miss, evicted, diverged, apart, gone_through),
            evicted=evicted,
            diverged=diverged,
            on_tier=None if miss.gated is None else _on_tier(miss.gated),
            lossy_form=gone_through,
            kept_apart_by=list(apart) or None,
        )

    def _diverged(self, divergence: Divergence, token_bytes: TokenBytes) -> Diverged:
        first = divergence.position - divergence.start
        cached = divergence.cached[first : first + _SHOWN_TOKENS]
        texts = [_text(each, token_bytes) for each in (self.after, self.prompt, cached)]
        return Diverged(
            position=divergence.position, after=texts[0], prompt=texts[1], cached=texts[2]
        )

    def _words(
        self,
        miss: Miss,
        evicted: Evicted | None,
        diverged: Diverged | None,
        apart: Sequence[str],
        lossy_form: str | None,
    ) -> str:
        parts = [f"{miss.position:,} of {self.num_tokens:,} tokens were found."]
        if lossy_form is not None:
            parts.append(
                f"They may have gone through {lossy_form} on a tier, which loses a little."
            )
        for cause, number in miss.num_tokens.items():
            counted = f"{number:,} {'token' if number == 1 else 'tokens'}"
            parts.append(f"{counted}: {_WORDS[cause]}.")
            if cause is Cause.EVICTED and evicted is not None:
                parts.append(
                    f"That was {evicted.seconds_ago:,.1f} s ago, after {evicted.idle_seconds:,.1f} "
                    f"s without use, to make room for {evicted.to_make_room_for}."
                )
            if cause is Cause.DIVERGED and diverged is not None:
                parts.append(
                    f"From token {diverged.position:,} on, behind “{diverged.after}”, the prompt "
                    f"has “{diverged.prompt}” and the cache “{diverged.cached}”."
                )
            if cause is Cause.NOT_SHARED:
                parts.append(f"It belongs to another {' and another '.join(apart)}.")
        if miss.gated is not None:
            parts.append(
                f"{miss.gated.num_tokens:,} of them were on {miss.gated.tier}: "
                f"{miss.gated.load_s:.1f} s to load, {miss.gated.compute_s:.1f} s to compute."
            )
        return " ".join(parts)


_WORDS = {
    Cause.NEVER_SEEN: "nothing that goes on like this has been seen",
    Cause.DIVERGED: "what is cached goes on otherwise",
    Cause.EVICTED: "they were cached and have been evicted, or what comes before them has",
    Cause.NOT_SHARED: "the same is cached, but not shared with it",
    Cause.REMAINDER: "what is left when whole blocks have been found is always computed",
    Cause.UNREAD: "the prompt's log-probabilities were asked for, so all of it is computed",
    Cause.CACHING_OFF: "prefix caching is off",
}


def _evicted(miss: Miss, eviction: Eviction, holder: Holder) -> Evicted:
    room_for = _OWN
    if eviction.by.tenant != miss.origin.tenant:
        room_for = f"requests of {eviction.by.tenant}" if holder.is_operator else _OTHERS
    elif holder.tenant != miss.origin.tenant:
        room_for = "its own requests"
    digits = 3 if holder.is_operator or room_for == _OWN else 0
    return Evicted(
        seconds_ago=round(eviction.seconds_ago, digits),
        idle_seconds=round(eviction.idle_s, digits),
        to_make_room_for=room_for,
    )


def _on_tier(gated: Gated) -> OnTier:
    return OnTier(
        tier=gated.tier,
        tokens=gated.num_tokens,
        load_seconds=round(gated.load_s, 3),
        compute_seconds=round(gated.compute_s, 3),
    )


def _text(token_ids: Iterable[int], token_bytes: TokenBytes) -> str:
    return b"".join(map(token_bytes, token_ids)).decode("utf-8", "replace")
