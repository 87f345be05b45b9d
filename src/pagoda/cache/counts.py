"""What a cache counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What is counted from the start on."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    allocations: int = 0
    evictions: int = 0
    commits: int = 0
    copies_on_write: int = 0
