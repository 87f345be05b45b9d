"""What a cache has done and how full it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pagoda.cache.hinted import HintCounts
from pagoda.cache.prefix_pool import PrefixPool


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
    hints: HintCounts
    prefix_queries: int
    """Tokens that were looked up when their sequence began."""
    prefix_hits: int
    """Tokens of those that were found."""
    allocations: int
    evictions: int
    commits: int
    copies_on_write: int

    @classmethod
    def of(cls, blocks: PrefixPool, block_size: int, *, enable_prefix_caching: bool) -> CacheStats:
        """As of now."""
        return cls(
            num_blocks=blocks.pool.num_blocks,
            block_size=block_size,
            enable_prefix_caching=enable_prefix_caching,
            num_free_blocks=blocks.pool.num_free,
            num_cached_blocks=blocks.pool.num_cached,
            num_indexed_blocks=len(blocks.index),
            hints=blocks.pool.partitions.hints,
            **asdict(blocks.counts),
        )

    @property
    def usage(self) -> float:
        """Share of the pool that sequences hold, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks
