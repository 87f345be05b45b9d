"""Values within and beyond a limit, so that a new field is tested as soon as it has one."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from pagoda.limits import Limit, Real, Switch, Whole
from pagoda.request import SAMPLING_LIMITS, SamplingParams

NO_NUMBERS: list[Any] = [True, "1", [1], {}, b"1", 1j]
NO_REALS = [*NO_NUMBERS, None, math.nan, math.inf, -math.inf, 10**400]
NO_WHOLES = [*NO_NUMBERS, 1.0, math.nan, 10**400, -(10**400)]
NO_SWITCHES = [1, 0, None, "true", []]

DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(SamplingParams)}


def accepted(limit: Limit) -> list[Any]:
    """Values at the limit's ends."""
    if isinstance(limit, Switch):
        return [True, False]
    if isinstance(limit, Real):
        low = math.nextafter(limit.low, math.inf) if limit.above_low else limit.low
        return [low, (limit.low + limit.high) / 2, limit.high]
    return [*([None] if limit.or_none else []), limit.low, limit.high]


def refused(limit: Limit) -> list[Any]:
    """Values just beyond the limit's ends, and of other types."""
    if isinstance(limit, Switch):
        return NO_SWITCHES
    if isinstance(limit, Real):
        low = limit.low if limit.above_low else math.nextafter(limit.low, -math.inf)
        return [*NO_REALS, low, math.nextafter(limit.high, math.inf)]
    beyond = [limit.low - 1, limit.high + 1]
    return [*NO_WHOLES, *([] if limit.or_none else [None]), *beyond]


def another(name: str) -> Any:
    """A value of the field that is not its default."""
    limit = SAMPLING_LIMITS[name]
    if isinstance(limit, Whole):
        candidates = [limit.low, limit.low + 1]
    elif isinstance(limit, Real):
        candidates = [(limit.low + limit.high) / 2, limit.high]
    else:
        candidates = [True, False]
    return next(value for value in candidates if value != DEFAULTS[name])
