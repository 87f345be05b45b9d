"""What formats of the cache were measured to cost in quality, for whoever proposes one.

    pagoda lab --kv-cache-dtype int8_per_token_head --passkey-trials 0

on SmolLM2-135M and Python's language reference, 16 windows of 1,024 tokens. Another model pays
another price.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

MODEL = "SmolLM2-135M"


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """How far answers are from those of a plain cache."""

    perplexity_change: float
    """0.01 is 1%."""
    low: float
    """95% of draws lie from here …"""
    high: float
    """… to here."""
    top1: float
    """Share of positions whose likeliest token is the same."""


COSTS = MappingProxyType({"int8_per_token_head": MeasuredCost(0.0000, -0.0008, 0.0007, 0.985)})
"""By the name of `--kv-cache-dtype`."""


def told_cost(name: str) -> str:
    """A sentence on a format: what it was measured to cost, if it was."""
    cost = COSTS.get(name)
    if cost is None:
        return "Answers may change a little: compare first."
    return (
        f"Measured on {MODEL}: perplexity {cost.perplexity_change:+.2%} ({cost.low:+.2%} to "
        f"{cost.high:+.2%}), the likeliest token the same at {cost.top1:.1%} of positions; `pagoda "
        "lab` tells it for your model."
    )
