"""How long blocks stay in a cache, and how long nobody uses them.

published ─────── let go ─────── held again ─────── let go ─────────── evicted
                     |─ reuse gap ─>|                  |─ idle before ────>|
   |── lifetime ──────────────────────────────────────────────────────────>|
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pagoda.cache.block import BlockTable
from pagoda.cache.origin import Origin
from pagoda.cache.prefix import BlockHash, BlockKey
from pagoda.cache.watcher import Lookup
from pagoda.engine.histogram import Histogram

_SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120),
    *(300, 600, 1200, 1800, 3600, 7200),
)


class BlockLives:
    """Seconds of all blocks' lives, under vLLM's names. A `CacheWatcher`.

    One thread tells it what happens; any may read the figures. Takes some 0.2 KB for each block
    that can be found.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, as the cache has it."""
        self._clock = clock
        self._stored_at: dict[tuple[BlockHash, int], float] = {}
        """When the blocks that are there were published, by hash and group."""
        self.kv_block_lifetime_seconds = Histogram(_SECONDS)
        self.kv_block_idle_before_evict_seconds = Histogram(_SECONDS)
        self.kv_block_reuse_gap_seconds = Histogram(_SECONDS)

    def looked_up(self, lookup: Lookup) -> None:
        """What it found is told block by block, as far as it is used."""

    def stored(self, key: BlockKey, group: int, table: BlockTable) -> None:
        self._stored_at[key.hash, group] = self._clock()

    def reused(self, idle_s: float) -> None:
        self.kv_block_reuse_gap_seconds.observe(idle_s)

    def freed(self, table: BlockTable) -> None:
        """How long nobody has held a block is told when that is over."""

    def evicted(self, key: BlockKey, group: int, idle_s: float, by: Origin) -> None:
        lifetime_s = self._clock() - self._stored_at.pop((key.hash, group))
        self.kv_block_lifetime_seconds.observe(lifetime_s)
        self.kv_block_idle_before_evict_seconds.observe(idle_s)

    def cleared(self) -> None:
        """What is forgotten by order has no lifetime."""
        self._stored_at.clear()
