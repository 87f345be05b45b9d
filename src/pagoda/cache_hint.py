"""What a request may say of how long its cached blocks are to stay."""

from __future__ import annotations

from enum import StrEnum

from pagoda.errors import InvalidRequestError


class CacheHint(StrEnum):
    """A wish, within bounds for each tenant (`pagoda.cache.hinted`); it changes no answer."""

    PIN = "pin"
    """The blocks go after all others, sessions' too."""
    SESSION = "session"
    """What the policy gives up of them goes once nothing else is left but pinned blocks."""
    NONE = "none"
    """What the request computes goes before all others; what it found counts as used."""


CACHE_HINTS = tuple(CacheHint)
CACHE_HINT_LIMIT = f"one of {', '.join(CACHE_HINTS)}"


def cache_hint_of(value: object) -> CacheHint | None:
    """A hint by its name; None stays None. Raises `InvalidRequestError` for anything else."""
    if value is None:
        return None
    if not isinstance(value, str) or value not in CACHE_HINTS:
        raise InvalidRequestError("cache_hint", value, f"must be {CACHE_HINT_LIMIT}")
    return CacheHint(value)
