"""What brings the fewest hits for its place and time goes first, as learned from what happened."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.evictions.age_lists import AgeLists
from pagoda.cache.evictions.content_key import content_key
from pagoda.cache.evictions.duel import Duel
from pagoda.cache.evictions.ghosts import Ghost, Ghosts
from pagoda.cache.evictions.reuse_odds import ReuseOdds
from pagoda.cache.record import NO_BLOCK, BlockRecord

FRESH, SUFFIX, TWICE, MORE = range(4)
"""Classes of blocks: used once, in a chain that is new; used once, behind what was used before;
used twice; used more often."""
NUM_CLASSES = 4
_SHARED = 16
"""What was used more often than this is everybody's, as a system's prompt: what follows is new."""
_GHOSTS = 3
"""Evicted blocks that are remembered, in pools."""
_LEARNS = 16
"""Times that odds and order are worked out while a pool of blocks is released."""


class Density:
    """Gives up the block of which the fewest hits are expected for its place and time.

    Only ends of chains are given up, so tails go before heads. Blocks of one class and age have the
    same odds (`ReuseOdds`). Time is the number of blocks released, so that an idle hour ages
    nothing. It departs from least recently used first as far as that pays (`Duel`): what LRU
    would hold and this does not is bounded by what was won, and by evidence. Takes some 0.9 KB for
    each block of the pool, most of it for blocks that were evicted.
    """

    def __init__(self, num_blocks: int) -> None:
        self._odds = ReuseOdds(NUM_CLASSES, num_blocks)
        self._ends = AgeLists(NUM_CLASSES, self._odds.bounds)
        """Held blocks that no block which is there follows."""
        self._duel = Duel(num_blocks, AgeLists(NUM_CLASSES, self._odds.bounds))
        self._held: OrderedDict[int, None] = OrderedDict()
        """All held blocks, the least recently used first."""
        self._ghosts = Ghosts(_GHOSTS * num_blocks)
        self._now = 0
        """Blocks released."""
        self._learns_every = max(32, num_blocks // _LEARNS)
        # Of each block:
        self._keys = array("Q", bytes(8 * num_blocks))
        self._parents = array("i", [NO_BLOCK]) * num_blocks
        self._stays = array("Q", bytes(8 * num_blocks))
        """Counts contents, so that a parent's next content is not taken for the parent."""
        self._stays_of_parents = array("Q", bytes(8 * num_blocks))
        self._num_children = array("i", bytes(4 * num_blocks))
        self._num_uses = array("q", bytes(8 * num_blocks))
        self._last_used = array("q", bytes(8 * num_blocks))
        self._kinds = array("b", bytes(num_blocks))
        self._is_followed = bytearray(num_blocks)
        """Whether the duel is told of what it holds."""

    def publish(self, block_id: int, record: BlockRecord) -> None:
        key, parent, num_uses = content_key(record), record.parent, 1
        ghost = self._ghosts.pop(key)
        if ghost is not None:
            self._odds.used(ghost.kind, self._now - ghost.last_used)
            num_uses += ghost.num_uses
        self._stays[block_id] += 1
        self._keys[block_id] = key
        self._parents[block_id] = parent
        self._num_children[block_id] = 0
        if parent != NO_BLOCK:
            self._stays_of_parents[block_id] = self._stays[parent]
            self._num_children[parent] += 1
            self._ends.drop(parent)
        self._num_uses[block_id] = num_uses
        self._kinds[block_id] = self._kind_of(num_uses, parent)
        self._is_followed[block_id] = self._duel.follows(key)
        if self._is_followed[block_id]:
            self._duel.used(key, is_found=False)

    def add(self, block_id: int) -> None:
        is_end = not self._num_children[block_id]
        self._now += 1
        self._last_used[block_id] = self._now
        self._held[block_id] = None
        self._odds.released(ends_request=is_end)
        if is_end:
            self._ends.put(block_id, self._kinds[block_id], self._now)
            self._duel.end_request()
        if self._is_followed[block_id]:
            self._duel.released(self._keys[block_id], self._kinds[block_id], self._now)
        if self._now % self._learns_every == 0:
            self._learn()

    def hit(self, block_id: int) -> None:
        del self._held[block_id]
        self._ends.drop(block_id)
        self._odds.used(self._kinds[block_id], self._now - self._last_used[block_id])
        self._num_uses[block_id] += 1
        self._kinds[block_id] = self._kind_of(self._num_uses[block_id], NO_BLOCK)
        if self._is_followed[block_id]:
            self._duel.used(self._keys[block_id], is_found=True)

    def renew(self, block_id: int) -> None:
        self._held.move_to_end(block_id)
        self._last_used[block_id] = self._now
        if self._ends.drop(block_id):
            self._ends.put(block_id, self._kinds[block_id], self._now)

    def evict(self) -> int:
        block_id = self._ends.pop_used_by(self._duel.may_go(self._now))
        if block_id is None:
            block_id, _ = self._held.popitem(last=False)
            self._ends.drop(block_id)
        else:
            del self._held[block_id]
        self._remember(block_id)
        self._leave_parent(block_id)
        return block_id

    def forget(self, block_id: int) -> None:
        if block_id in self._held:
            del self._held[block_id]
            self._ends.drop(block_id)
            if self._is_followed[block_id]:
                self._duel.forgotten(self._keys[block_id])
        self._leave_parent(block_id)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[int]:
        """By their last use: which goes first depends on what is learned until then."""
        return iter(self._held)

    def _kind_of(self, num_uses: int, parent: int) -> int:
        if num_uses > 1:
            return TWICE if num_uses == 2 else MORE
        if parent == NO_BLOCK or self._num_uses[parent] > _SHARED:
            return FRESH
        return self._kinds[parent] if self._num_uses[parent] == 1 else SUFFIX

    def _remember(self, block_id: int) -> None:
        if self._is_followed[block_id]:
            self._duel.given_up(self._keys[block_id])
        kind, last_used = self._kinds[block_id], self._last_used[block_id]
        ghost = Ghost(kind, last_used, self._num_uses[block_id])
        forgotten = self._ghosts.put(self._keys[block_id], ghost)
        if forgotten is not None:
            self._odds.given_up(forgotten.kind, self._now - forgotten.last_used)

    def _leave_parent(self, block_id: int) -> None:
        """The block's content is gone: it follows none, and those that follow it are heads."""
        parent, self._parents[block_id] = self._parents[block_id], NO_BLOCK
        self._stays[block_id] += 1
        if parent == NO_BLOCK or self._stays[parent] != self._stays_of_parents[block_id]:
            return
        self._num_children[parent] -= 1
        if not self._num_children[parent] and parent in self._held:
            last_used = self._last_used[parent]
            age = self._odds.age_of(self._now - last_used)
            self._ends.put_oldest(parent, self._kinds[parent], last_used, age)

    def _learn(self) -> None:
        order = self._odds.order()
        self._ends.age(self._now)
        self._ends.rank(order)
        self._duel.judge(self._now, order, self._learns_every)
        self._odds.fade(self._learns_every)
