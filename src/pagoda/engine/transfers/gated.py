"""What a tier had and was not asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gated:
    """Blocks of a prefix that are on a tier, and quicker to compute than to load."""

    tier: str
    num_tokens: int
    load_s: float
    compute_s: float
