"""A pool whose blocks can be found again by what they hold."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence

from pagoda.cache.accounts import Accounts
from pagoda.cache.block import BlockTable
from pagoda.cache.counts import Counts
from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.hinted import Mark
from pagoda.cache.origin import Origin
from pagoda.cache.pool import BlockPool
from pagoda.cache.prefix import BlockKey, PrefixIndex
from pagoda.cache.quota import Quota
from pagoda.cache.watcher import CacheWatcher, Lookup


class PrefixPool:
    """Keeps `pool`, who holds which block, `index`, what is in it, and `accounts`, whose it is, in
    step."""

    def __init__(
        self,
        num_blocks: int,
        new_policy: Callable[[], EvictionPolicy],
        quotas: Mapping[str, Quota],
        num_groups: int,
        watchers: Sequence[CacheWatcher],
        clock: Callable[[], float],
    ) -> None:
        """`clock`: seconds, by which the watchers are told how long a block was idle."""
        self.pool = BlockPool(num_blocks, new_policy, quotas)
        self.index = PrefixIndex(num_blocks, num_groups)
        self.counts = Counts()
        self.accounts = Accounts(num_blocks, clock)
        self._num_groups = num_groups
        self._watchers = tuple(watchers)
        self._clock = clock
        self._released_at = array("d", bytes(8 * num_blocks) if self._watchers else b"")
        """When the last reference to a block was dropped."""

    def allocate(self, origin: Origin) -> int:
        """A block for a sequence of `origin`. Raises IndexError when every block is held."""
        block_id = self.pool.allocate(origin.tenant)
        self.counts.allocations += 1
        if block_id in self.index:
            self._evict(block_id, origin)
        self.accounts.taken(block_id, origin.tenant)
        return block_id

    def acquire(self, block_id: int) -> None:
        """One more reference to a block that is held or cached."""
        if self.pool.ref_counts[block_id] == 0:
            self.accounts.found(block_id)
            if self._watchers:
                idle_s = self._clock() - self._released_at[block_id]
                for watcher in self._watchers:
                    watcher.reused(idle_s)
        if not self.pool.acquire(block_id):
            self.pool.publish(block_id, self.index.record_of(block_id))

    def release(self, block_id: int, *, is_passed: bool = False) -> None:
        """One reference less; see `BlockPool.release`."""
        is_findable = block_id in self.index
        self.pool.release(block_id, keep=is_findable, is_passed=is_passed)
        if self.pool.ref_counts[block_id]:
            return
        if not is_findable:
            self.accounts.given_back(block_id)
            return
        self.accounts.kept(block_id)
        if self._watchers:
            self._released_at[block_id] = self._clock()

    def mark(self, block_id: int, mark: Mark) -> None:
        """A request asks to keep a block, which has an effect if it can be found."""
        if block_id in self.index:
            self.pool.mark(block_id, mark)

    def publish(self, key: BlockKey, block_id: int, group: int, table: BlockTable) -> None:
        """A block that a table holds can be found by `key`, unless another can."""
        if not self.index.insert(key, block_id, group):
            return
        self.pool.publish(block_id, self.index.record_of(block_id))
        self.counts.commits += 1
        for watcher in self._watchers:
            watcher.stored(key, group, table)

    def look_up(self, lookup: Lookup) -> None:
        """Count what a sequence that begins has found."""
        if lookup.is_caching and lookup.is_read:
            self.counts.prefix_queries += lookup.num_tokens
            self.counts.prefix_hits += lookup.num_found
        for watcher in self._watchers:
            watcher.looked_up(lookup)

    def tell_freed(self, table: BlockTable) -> None:
        """A table is about to let go of all its blocks."""
        for watcher in self._watchers:
            watcher.freed(table)

    def is_shared(self, block_id: int) -> bool:
        """Others hold a held block, or can find it."""
        return self.pool.ref_counts[block_id] > 1 or block_id in self.index

    def forget(self) -> None:
        """Nothing can be found any more; blocks stay with those who hold them."""
        for block_id in self.pool.cached_ids():
            self.accounts.lost(block_id)
        self.pool.forget(self.index.items())
        self.index.clear()
        self._tell_cleared()

    def reset(self) -> None:
        """Every block is blank, whatever it was; counts go on."""
        self.index = PrefixIndex(self.pool.num_blocks, self._num_groups)
        self.pool.reset()
        self.accounts.clear()
        self._tell_cleared()

    def _evict(self, block_id: int, by: Origin) -> None:
        key, group = self.index.key_of(block_id), self.index.group_of(block_id)
        self.index.remove(block_id)
        self.accounts.evicted(block_id, by.tenant)
        self.counts.evictions += 1
        if self._watchers:
            idle_s = self._clock() - self._released_at[block_id]
            for watcher in self._watchers:
                watcher.evicted(key, group, idle_s, by)

    def _tell_cleared(self) -> None:
        for watcher in self._watchers:
            watcher.cleared()
