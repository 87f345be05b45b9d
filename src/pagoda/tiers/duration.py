"""Spans of time as people write them."""

from __future__ import annotations

import re

from pagoda.errors import InvalidOptionError

_DAY_S = 86400.0
MOST_S = 10_000 * _DAY_S
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY_S}
_SPAN = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d|)\s*")


def parse_duration(field: str, text: str) -> float:
    """Seconds of a span like "0.5", "90s", "15m", "12h" or "7d".

    Raises `InvalidOptionError` for what is none, nothing at all, or more than 10,000 days.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise InvalidOptionError(field, text, "a span of time like 0.5, 90s, 15m, 12h or 7d")
    seconds = float(match[1]) * _UNITS_S[match[2]]
    if not seconds:
        raise InvalidOptionError(field, text, "must be more than nothing")
    if seconds > MOST_S:
        raise InvalidOptionError(field, text, "must be at most 10,000 days")
    return seconds


def parse_timeout(field: str, text: str) -> float:
    """The same for what somebody waits for: at most 24 hours, which any clock can count."""
    seconds = parse_duration(field, text)
    if seconds > _DAY_S:
        raise InvalidOptionError(field, text, "must be at most 24 hours")
    return seconds
