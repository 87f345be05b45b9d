"""Blocks that nobody holds and that can be found, in the order in which they are given up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.hinted import HintedBlocks, Mark
from pagoda.cache.record import BlockRecord


class CachedBlocks:
    """What was passed goes first: of little worth alone behind a window, or nobody is to look for
    it. Then by the policy, and last what hints keep."""

    def __init__(
        self, policy: EvictionPolicy, num_blocks: int, *, takes_turns: bool = False
    ) -> None:
        """`num_blocks`: of the pool. takes_turns: others give up blocks too, so `turn` is asked."""
        self._by_policy = policy
        self._passed = LRU()
        self._hinted = HintedBlocks(num_blocks)
        self._num_blocks = 0
        """All that are cached."""
        self._takes_turns = takes_turns
        self._released: OrderedDict[int, int] = OrderedDict()
        """When each that no hint keeps was released, the longest ago first; for turns alone."""

    @property
    def turn(self) -> tuple[int, int]:
        """By which one of several gives up a block, the lowest first: whoever has some that were
        passed, then whoever has one that nobody has wanted for longest, kept by no hint first."""
        if self._released:
            return 0 if self._passed else 1, next(iter(self._released.values()))
        is_pinned, since, _ = self._hinted.first
        return 3 if is_pinned else 2, since

    @property
    def hinted(self) -> HintedBlocks:
        """Those that hints keep; to be read."""
        return self._hinted

    def mark(self, block_id: int, mark: Mark) -> None:
        """A block that is referenced is asked to be kept, or one that is renewed next."""
        self._hinted.mark(block_id, mark)

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """A referenced block can be found from now on."""
        self._by_policy.publish(block_id, record)

    def add(self, block_id: int, now: int, *, is_passed: bool) -> None:
        """The last reference to a block was dropped, by a clock that never goes back."""
        self._num_blocks += 1
        if not self._hinted.is_marked(block_id):
            self._put(block_id, now, is_passed=is_passed)
            return
        for beyond in self._hinted.add(block_id, now):
            self._put(beyond, now, is_passed=False)

    def _put(self, block_id: int, now: int, *, is_passed: bool) -> None:
        (self._passed if is_passed else self._by_policy).add(block_id)
        if self._takes_turns:
            self._released[block_id] = now

    def hit(self, block_id: int) -> None:
        """A sequence holds a block again."""
        self._num_blocks -= 1
        if block_id in self._hinted:
            self._hinted.hit(block_id)
            return
        self._released.pop(block_id, None)
        (self._passed if block_id in self._passed else self._by_policy).hit(block_id)

    def renew(self, block_id: int, now: int) -> None:
        """A block counts as if its last reference were dropped just now."""
        if self._hinted.is_marked(block_id):
            self.hit(block_id)
            self.add(block_id, now, is_passed=False)
            return
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
        self._num_blocks -= 1
        if self._passed:
            block_id = self._passed.evict()
            self._by_policy.forget(block_id)
        elif self._num_blocks >= len(self._hinted):
            block_id = self._by_policy.evict()
        else:
            block_id = self._hinted.evict()
            self._by_policy.forget(block_id)
        self._released.pop(block_id, None)
        return block_id

    def forget(self, block_id: int) -> None:
        """What a block holds, cached or referenced, is worth nothing any more."""
        is_unhinted = block_id in self._by_policy or block_id in self._passed
        self._num_blocks -= is_unhinted or block_id in self._hinted
        self._by_policy.forget(block_id)
        self._passed.forget(block_id)
        self._hinted.forget(block_id)
        self._released.pop(block_id, None)

    def __len__(self) -> int:
        return self._num_blocks

    def __iter__(self) -> Iterator[int]:
        """In the order in which they go where that is fixed."""
        yield from self._passed
        yield from self._by_policy
        yield from self._hinted
