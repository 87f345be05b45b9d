"""What `pagoda plan --tier` prints: where each tier stops paying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from pagoda.planning.tier_worth import TierWorth


def print_tiers(tiers: Sequence[TierWorth], console: Console) -> None:
    """A line for each tier, and what a tier has to reach."""
    first = tiers[0]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("a tier", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column(f"load {first.context:,}", justify="right", no_wrap=True)
    table.add_column("compute", justify="right", no_wrap=True)
    table.add_column("worth loading")
    for tier in tiers:
        table.add_row(
            tier.name, _figures(tier), seconds(tier.load_s), seconds(tier.compute_s), _worth(tier)
        )
    console.print()
    console.print(table)
    for line in _lines(first, buys_nothing=any(tier.buys_nothing for tier in tiers)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(tier: TierWorth, *, buys_nothing: bool) -> Iterator[str]:
    yield (
        f"a token moves {tier.token_bytes:,.0f} bytes: to pay at {tier.context:,} tokens, a tier "
        f"has to bring more than {tier.least_bandwidth / 1e9:,.3g} GB/s"
    )
    if tier.is_floor:
        yield (
            "computing takes as long as that at least, and shorter prefixes pay where it takes "
            "longer: --prefill-rate"
        )
    if buys_nothing:
        yield (
            "host memory is the memory that is computed in: a copy there buys nothing, a larger "
            "pool does"
        )


def seconds(value: float) -> str:
    """Of a second, or milliseconds of less."""
    return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:,.3g} ms"


def _figures(tier: TierWorth) -> str:
    requests = "" if tier.requests_at_once is None else f", {tier.requests_at_once} at once"
    return f"{tier.bandwidth / 1e9:,.3g} GB/s, {seconds(tier.latency_s)}{requests}"


def _worth(tier: TierWorth) -> str:
    if tier.buys_nothing:
        return "nothing: the same memory"
    if tier.shortest_tokens is None:
        return f"nothing up to {tier.longest_tokens:,} tokens"
    return f"from {tier.shortest_tokens:,} tokens on"
