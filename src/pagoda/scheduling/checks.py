"""The options of a scheduler, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pagoda.errors import InvalidOptionError
from pagoda.scheduling.queue import POLICIES


def require_options(
    *,
    policy: str,
    long_prefill_token_threshold: int,
    tenant_weights: Mapping[str, float] | None,
    **at_least_one: int,
) -> None:
    """Raises `InvalidOptionError` for the first of a scheduler's options that is out of range."""
    for weight in (tenant_weights or {}).values():
        if not 0 < weight < math.inf:
            raise InvalidOptionError("tenant_weights", weight, "must be above 0, and finite")
    for name, value in at_least_one.items():
        if value < 1:
            raise InvalidOptionError(name, value, "must be at least 1")
    if long_prefill_token_threshold < 0:
        raise InvalidOptionError(
            "long_prefill_token_threshold", long_prefill_token_threshold, "must be at least 0"
        )
    if policy not in POLICIES:
        raise InvalidOptionError("scheduling_policy", policy, f"one of {', '.join(POLICIES)}")
