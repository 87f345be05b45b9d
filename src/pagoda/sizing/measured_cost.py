"""What smaller caches were measured to cost in quality, for whoever proposes one.

    pagoda lab --kv-cache-dtype int8_per_token_head --passkey-trials 0

on SmolLM2-135M and Python's language reference, 16 windows of 1,024 tokens; a retention by

    python benchmarks/streaming.py --text FILE

on SmolLM2-135M-Instruct and the jargon file, its first 4,096 tokens. Another model pays another
price.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from pagoda.cache.formats import INT8_LATENTS

NARROWER = ("int8_per_token_head", INT8_LATENTS)
"""What a plain cache is held against, the first that its layers can be: about half the bytes, and
nearly the same answers. That of latents was measured on no trained model."""
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


@dataclass(frozen=True, slots=True)
class RetentionCost:
    """Perplexity of one text."""

    name: str
    """As `--kv-retention` calls it."""
    perplexity: float
    full: float
    """Where every token stays."""
    num_tokens: int


STREAMING = RetentionCost("streaming:sinks=4,window=1020", 19.69, 16.98, 4096)


def told_retention_cost() -> str:
    """A sentence on keeping first and last tokens alone: what it was measured to cost."""
    cost = STREAMING
    return (
        f"Measured on {MODEL}-Instruct with {cost.name}: perplexity {cost.perplexity} over the "
        f"first {cost.num_tokens:,} tokens of a text, {cost.full} where all stay "
        f"({cost.perplexity / cost.full - 1:+.0%}); `pagoda lab --kv-retention` tells it for your "
        "model."
    )


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
