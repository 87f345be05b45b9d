"""What a cache has done and how full it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the start, and the state of the pool now."""

    num_blocks: int
    block_size: int
    """Tokens in a block."""
    enable_prefix_caching: bool
    num_free_blocks: int
    num_cached_blocks: int
    """Free blocks whose content can still be found."""
    num_indexed_blocks: int
    prefix_queries: int
    """Tokens that were looked up when their sequence began."""
    prefix_hits: int
    """Tokens of those that were found."""
    allocations: int
    evictions: int
    commits: int
    copies_on_write: int

    @property
    def usage(self) -> float:
        """Share of the pool that sequences hold, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks


@dataclass(slots=True)
class Counts:
    """What is counted from the start on."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    allocations: int = 0
    evictions: int = 0
    commits: int = 0
    copies_on_write: int = 0
