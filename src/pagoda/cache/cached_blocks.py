"""Blocks that nobody holds and that can be found: a policy's, and those that a window passed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.record import BlockRecord


class CachedBlocks:
    """What was let go behind a window goes first, of little worth alone; then by the policy."""

    def __init__(self, policy: EvictionPolicy, *, takes_turns: bool = False) -> None:
        """takes_turns: others give up blocks as well, so `turn` is asked."""
        self._by_policy = policy
        self._passed = LRU()
        self._takes_turns = takes_turns
        self._released: OrderedDict[int, int] = OrderedDict()
        """When each was released, the longest ago first, where turns are taken."""

    @property
    def turn(self) -> tuple[bool, int]:
        """By which one of several gives up a block, the lowest first: whoever has some that a
        window passed, then whoever has one that nobody has wanted for longest."""
        return not self._passed, next(iter(self._released.values()))

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """A referenced block can be found from now on."""
        self._by_policy.publish(block_id, record)

    def add(self, block_id: int, now: int, *, is_passed: bool) -> None:
        """The last reference to a block was dropped, by a clock that never goes back."""
        (self._passed if is_passed else self._by_policy).add(block_id)
        if self._takes_turns:
            self._released[block_id] = now

    def hit(self, block_id: int) -> None:
        """A sequence holds a block again."""
        self._released.pop(block_id, None)
        (self._passed if block_id in self._passed else self._by_policy).hit(block_id)

    def renew(self, block_id: int, now: int) -> None:
        """A block counts as if its last reference were dropped just now."""
        if self._takes_turns:
            self._released[block_id] = now
            self._released.move_to_end(block_id)
        if block_id in self._passed:
            self._passed.hit(block_id)
            self._by_policy.add(block_id)
        else:
            self._by_policy.renew(block_id)

    def evict(self) -> int:
        """Give a block up. The caller sees to it that there is one."""
        if self._passed:
            block_id = self._passed.evict()
            self._by_policy.forget(block_id)
        else:
            block_id = self._by_policy.evict()
        self._released.pop(block_id, None)
        return block_id

    def forget(self, block_id: int) -> None:
        """What a block holds, cached or referenced, is worth nothing any more."""
        self._by_policy.forget(block_id)
        self._passed.forget(block_id)
        self._released.pop(block_id, None)

    def __len__(self) -> int:
        return len(self._by_policy) + len(self._passed)

    def __iter__(self) -> Iterator[int]:
        """In the order in which they go where that is fixed."""
        yield from self._passed
        yield from self._by_policy
