"""What each tenant has had of an engine, and has now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from pagoda.cache.accounts import NOTHING, Holding
from pagoda.engine.meter import Meter, TokenCounts

TOTALS = (
    *(field.name for field in fields(TokenCounts)),
    "held_block_seconds",
    "cached_block_seconds",
)
"""The names of what adds up."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one tenant; `tokens` and seconds add up, blocks are as of now."""

    tokens: TokenCounts
    blocks: Holding

    def totals(self) -> dict[str, float]:
        """What adds up, by the names in `TOTALS`."""
        return {
            **asdict(self.tokens),
            "held_block_seconds": self.blocks.held_block_seconds,
            "cached_block_seconds": self.blocks.cached_block_seconds,
        }


def usage_of(meter: Meter, holdings: Mapping[str, Holding]) -> dict[str, Usage]:
    """By tenant, of all that ever asked."""
    counts = meter.counts
    return {
        tenant: Usage(counts.get(tenant, TokenCounts()), holdings.get(tenant, NOTHING))
        for tenant in [*counts, *(each for each in holdings if each not in counts)]
    }
