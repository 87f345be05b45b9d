"""Replays as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from pagoda.replay.what_if import CacheAnswer

_UNKNOWN = "–"


def cache_table(answers: Sequence[CacheAnswer]) -> Table:
    """A row for each setting of the cache alone."""
    table = _table(
        "policy",
        "block\nsize",
        "\nblocks",
        "hit\nrate",
        "at best,\nknowing all",
        "without\nend",
        "\nevictions",
        "\nrequests",
        "\nrefused",
        "\nseconds",
    )
    for answer in answers:
        outcome, optimum = answer.outcome, answer.optimum
        table.add_row(
            answer.setting.eviction_policy,
            f"{answer.setting.block_size:,}",
            f"{answer.setting.num_blocks:,}",
            share(outcome.hit_rate),
            share(None if optimum is None else optimum.hit_rate),
            share(None if optimum is None else optimum.unbounded_hit_rate),
            f"{outcome.num_evictions:,}",
            f"{outcome.num_requests:,}",
            f"{outcome.num_refused:,}",
            f"{answer.duration_s:.1f}",
        )
    return table


def share(value: float | None) -> str:
    """A share of 0 to 1 in per cent."""
    return _UNKNOWN if value is None else f"{value:.1%}"


def _table(first: str, *headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"\n{first}", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
