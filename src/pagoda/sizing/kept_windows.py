"""Which tokens the layers of a cache keep, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pagoda.cache.spec import CacheSpec
from pagoda.cache.window import AttentionWindow


def kept_line(spec: CacheSpec) -> str | None:
    """What layers keep of a sequence, and of how many groups of blocks; None: every token, all."""
    kept = Counter(layer.window for layer in spec.layers)
    if all(window.is_full for window in kept):
        return None
    return f"kept of a sequence: {in_layers(kept)}; {_count(len(spec.groups), 'group')} of blocks"


def in_layers(kept: Mapping[AttentionWindow, int]) -> str:
    """Which tokens so many layers keep, in words."""
    return "; ".join(f"{_tokens(window)} in {_count(n, 'layer')}" for window, n in kept.items())


def _tokens(window: AttentionWindow) -> str:
    if window.is_full:
        return "every token"
    first = f"the first {window.sinks:,} and " if window.sinks else ""
    return f"{first}the last {window.window:,} tokens"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
