"""What loads and stores have done, and what is known of each tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagoda.tiers.shelf_stats import ShelfStats


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Since the start, and as of now."""

    shelves: tuple[ShelfStats, ...] = ()
    """Of each tier, the nearest first."""
    num_tokens_asked: int = 0
    """Tokens of prompts that the cache did not have and tiers were asked for."""
    num_tokens_loaded: int = 0
    """Tokens whose keys and values came from tiers."""
    endings: Mapping[str, int] = field(default_factory=dict)
    """How look-ups and loads ended: whole, not_found, gated, late, no_room, abandoned, or the
    reason why a frame was not there or a tier failed."""
    lossy_form: str | None = None
    """Of the blocks that came from tiers; None: they are what was computed."""
