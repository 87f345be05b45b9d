"""Blocks that nobody holds and that can be found, in the order in which they are given up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.hinted import HintBounds, HintedBlocks, Mark
from pagoda.cache.record import BlockRecord


class CachedBlocks:
    """What was passed goes first: of little worth alone behind a window, or nobody is to look for
    it. Then what the policy gives up and no hint keeps, and last what hints do keep."""

    def __init__(
        self, policy: EvictionPolicy, bounds: HintBounds, *, takes_turns: bool = False
    ) -> None:
        """`bounds`: of what hints keep. takes_turns: others give up blocks too, so `turn` is
        asked."""
        self._by_policy = policy
        self._passed = LRU()
        self._hinted = HintedBlocks(bounds)
        self._num_blocks = 0
        """All that are cached."""
        self._takes_turns = takes_turns
        self._released: OrderedDict[int, int] = OrderedDict()
        """When each that is not set apart was released, the longest ago first; for turns alone."""

    @property
    def turn(self) -> tuple[int, int]:
        """By which one of several gives up a block, the lowest first: whoever has some that were
        passed, then whoever has one that nobody has wanted for longest, not set apart if any is."""
        if self._released:
            return 0 if self._passed else 1, next(iter(self._released.values()))
        is_pinned, turn, _ = self._hinted.first
        return 3 if is_pinned else 2, turn

    @property
    def hinted(self) -> HintedBlocks:
        """What hints say of its blocks; to be read."""
        return self._hinted

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """A referenced block can be found from now on."""
        self._by_policy.publish(block_id, record)

    def mark(self, block_id: int, mark: Mark) -> None:
        """A request asks to keep a block that can be found."""
        self._hinted.mark(block_id, mark)

    def add(self, block_id: int, now: int, *, is_passed: bool) -> None:
        """The last reference to a block was dropped, by a clock that never goes back."""
        self._num_blocks += 1
        is_marked = self._hinted.is_marked(block_id)
        (self._passed if is_passed and not is_marked else self._by_policy).add(block_id)
        if self._takes_turns:
            self._released[block_id] = now

    def hit(self, block_id: int) -> bool:
        """A sequence holds a block again. False: the policy had given it up, so that it is to be
        published anew."""
        self._num_blocks -= 1
        if block_id in self._hinted:
            self._hinted.hit(block_id)
            return False
        self._released.pop(block_id, None)
        (self._passed if block_id in self._passed else self._by_policy).hit(block_id)
        return True

    def renew(self, block_id: int, now: int) -> None:
        """A block counts as if its last reference were dropped just now."""
        if block_id in self._hinted:
            self._hinted.renew(block_id)
            return
        if block_id in self._released:
            self._released[block_id] = now
            self._released.move_to_end(block_id)
        if block_id in self._passed:
            self._passed.hit(block_id)
            self._by_policy.add(block_id)
        else:
            self._by_policy.renew(block_id)

    def evict(self) -> int | None:
        """Give a block up; None: one was set apart instead, and it is for the next turn to give one
        up. The caller sees to it that there is one."""
        block_id = self._given_up()
        if block_id is not None:
            self._num_blocks -= 1
        return block_id

    def _given_up(self) -> int | None:
        if self._num_blocks == len(self._hinted):
            return self._hinted.evict()
        if self._passed:
            block_id = self._passed.evict()
            self._by_policy.forget(block_id)
        else:
            block_id = self._by_policy.evict()
        self._released.pop(block_id, None)
        return self._hinted.set_apart(block_id) if self._hinted.is_marked(block_id) else block_id

    def forget(self, block_id: int) -> None:
        """What a block holds, cached or referenced, is worth nothing any more."""
        self._by_policy.forget(block_id)
        self._passed.forget(block_id)
        self._hinted.forget(block_id)
        self._released.pop(block_id, None)
        self._num_blocks = len(self._by_policy) + len(self._passed) + len(self._hinted)

    def is_consistent(self) -> bool:
        """Every block lies in one place and is counted, and hints keep no more than they may."""
        places = (*self._passed, *self._by_policy, *self._hinted)
        is_counted = len(set(places)) == len(places) == self._num_blocks
        return is_counted and self._hinted.is_consistent()

    def __len__(self) -> int:
        return self._num_blocks

    def __iter__(self) -> Iterator[int]:
        """In the order in which they go where that is fixed."""
        yield from self._passed
        yield from self._by_policy
        yield from self._hinted
