"""Blocks that nobody holds and that can be found: a policy's, and those that a window passed."""

from __future__ import annotations

from collections.abc import Iterator

from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.record import BlockRecord


class CachedBlocks:
    """What was let go behind a window goes first, of little worth alone; then by the policy."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._by_policy = policy
        self._passed = LRU()

    @property
    def has_passed(self) -> bool:
        """Some were let go behind a window."""
        return bool(self._passed)

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """A referenced block can be found from now on."""
        self._by_policy.publish(block_id, record)

    def add(self, block_id: int, *, is_passed: bool) -> None:
        """The last reference to a block was dropped."""
        (self._passed if is_passed else self._by_policy).add(block_id)

    def hit(self, block_id: int) -> None:
        """A sequence holds a block again."""
        (self._passed if block_id in self._passed else self._by_policy).hit(block_id)

    def renew(self, block_id: int) -> None:
        """A block counts as if its last reference were dropped just now."""
        if block_id in self._passed:
            self._passed.hit(block_id)
            self._by_policy.add(block_id)
        else:
            self._by_policy.renew(block_id)

    def evict(self) -> int:
        """Give a block up. The caller sees to it that there is one."""
        if not self._passed:
            return self._by_policy.evict()
        block_id = self._passed.evict()
        self._by_policy.forget(block_id)
        return block_id

    def forget(self, block_id: int) -> None:
        """What a block holds, cached or referenced, is worth nothing any more."""
        self._by_policy.forget(block_id)
        self._passed.forget(block_id)

    def __len__(self) -> int:
        return len(self._by_policy) + len(self._passed)

    def __iter__(self) -> Iterator[int]:
        """In the order in which they go where that is fixed."""
        yield from self._passed
        yield from self._by_policy
