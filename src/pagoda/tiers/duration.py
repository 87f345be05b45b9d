"""Spans of time as people write them."""

from __future__ import annotations

import re

from pagoda.errors import InvalidOptionError

_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d|)\s*")


def parse_duration(field: str, text: str) -> float:
    """Seconds of a span like "0.5", "90s", "15m", "12h" or "7d".

    Raises `InvalidOptionError` for what is none, or nothing at all.
    """
    match = _SPAN.fullmatch(text)
    if match is None:
        raise InvalidOptionError(field, text, "a span of time like 0.5, 90s, 15m, 12h or 7d")
    seconds = float(match[1]) * _UNITS_S[match[2]]
    if not seconds:
        raise InvalidOptionError(field, text, "must be more than nothing")
    return seconds
