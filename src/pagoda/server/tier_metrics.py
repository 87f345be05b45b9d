"""What `/metrics` tells of tiers: from their counts to numbers by label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagoda.engine.transfers.transfer_stats import TransferStats
    from pagoda.tiers.shelf_stats import ShelfStats

LabelValues = tuple[str, ...]


def of_tiers(
    stats: TransferStats, read: Callable[[ShelfStats], float | None]
) -> Mapping[LabelValues, float]:
    """A number for each tier of which there is one."""
    found = {(shelf.name,): read(shelf) for shelf in stats.shelves}
    return {labels: number for labels, number in found.items() if number is not None}


def by_reason(
    stats: TransferStats, read: Callable[[ShelfStats], Mapping[str, int]]
) -> Mapping[LabelValues, float]:
    """A number for each tier and reason."""
    return {
        (shelf.name, reason): number
        for shelf in stats.shelves
        for reason, number in read(shelf).items()
    }


def moved(stats: TransferStats, what: str) -> Mapping[LabelValues, float]:
    """`what`: frames or bytes, for each tier and way."""
    return {
        (shelf.name, way): getattr(shelf.counts, f"{what}_{way}")
        for shelf in stats.shelves
        for way in ("loaded", "stored")
    }
