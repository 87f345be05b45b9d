"""A cache of keys alone: what a pool of another size, or under another policy, would find.

It has room for five blocks, and a sequence of four begins. Two are found, tails go before heads:

    was there        a b c d e     a and b are the head of what comes
    the path         a b x y       a, b found; x and y take the places of e and d
    is there then    a b x y c
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions import eviction_policy
from pagoda.cache.prefix import BlockHash
from pagoda.cache.record import NO_BLOCK, BlockRecord


class Shadow(Protocol):
    """Follows blocks of sequences by their hashes, as if each sequence took no time.

    A path is what is followed of a sequence, from its first block to its last; found is what comes
    before the first that is missing. Every block costs the same, however large the pool is.
    """

    def look_up(self, path: Sequence[BlockHash]) -> int:
        """How many leading blocks of a sequence that begins are found.

        The others are there afterwards, as far as blocks that are not the sequence's make room.
        """
        ...

    def renew(self, path: Sequence[BlockHash]) -> None:
        """A sequence ends: what it leaves behind is there, and counts as used last, by nobody."""
        ...

    def clear(self) -> None:
        """Nothing can be found any more."""
        ...

    def __len__(self) -> int: ...


def shadow_of(num_blocks: int, policy: str) -> Shadow:
    """A shadow of a pool of `num_blocks`, at least 1, under the policy of a name.

    Raises `InvalidOptionError` for an unknown name.
    """
    if policy == "lru":
        return LRUShadow(num_blocks)
    return PolicyShadow(num_blocks, partial(eviction_policy, policy, num_blocks))


class LRUShadow:
    """Under LRU an order of hashes is all there is: a tenth of the time of `PolicyShadow`."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._order: OrderedDict[BlockHash, None] = OrderedDict()
        """Least recently used first."""

    def look_up(self, path: Sequence[BlockHash]) -> int:
        num_found = 0
        for each in path:
            if each not in self._order:
                break
            num_found += 1
        self.renew(path)
        return num_found

    def renew(self, path: Sequence[BlockHash]) -> None:
        order = self._order
        for each in reversed(path):
            order[each] = None
            order.move_to_end(each)
        for _ in range(len(order) - self._num_blocks):
            order.popitem(last=False)

    def clear(self) -> None:
        self._order.clear()

    def __len__(self) -> int:
        return len(self._order)


class PolicyShadow:
    """Under any policy, which is told of ids as a pool's is."""

    def __init__(self, num_blocks: int, new_policy: Callable[[], EvictionPolicy]) -> None:
        """`new_policy` makes one for a pool of `num_blocks`."""
        self._num_blocks = num_blocks
        self._new_policy = new_policy
        self.clear()

    def clear(self) -> None:
        """And nothing is trusted, should a call have broken off in the middle."""
        self._policy = self._new_policy()
        self._ids: dict[BlockHash, int] = {}
        """Of the blocks that are there."""
        self._hashes = [b""] * self._num_blocks
        """Of each block, what it holds or held last."""
        self._blank = list(range(self._num_blocks - 1, -1, -1))

    def look_up(self, path: Sequence[BlockHash]) -> int:
        found = self._found(path)
        for block_id in found:
            self._policy.hit(block_id)
        for block_id in reversed((*found, *self._put(path, found))):
            self._policy.add(block_id)
        return len(found)

    def renew(self, path: Sequence[BlockHash]) -> None:
        found = self._found(path)
        self._renew(path, found)  # so that others make room first
        for block_id in reversed(self._put(path, found)):
            self._policy.add(block_id)
        self._renew(path, found)

    def __len__(self) -> int:
        return len(self._ids)

    def _renew(self, path: Sequence[BlockHash], found: Sequence[int]) -> None:
        for number in reversed(range(len(found))):
            if self._ids.get(path[number]) == found[number]:  # else it has made room itself
                self._policy.renew(found[number])

    def _found(self, path: Sequence[BlockHash]) -> list[int]:
        ids, found = self._ids, []
        for each in path:
            block_id = ids.get(each)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def _put(self, path: Sequence[BlockHash], found: Sequence[int]) -> list[int]:
        """New blocks for what of a path is not there, as long as there is room."""
        new = []
        before = path[len(found) - 1] if found else b""
        for each in path[len(found) :]:
            if each not in self._ids:
                block_id = self._take()
                if block_id is None:
                    break
                self._ids[each] = block_id
                self._hashes[block_id] = each
                parent = self._ids.get(before, NO_BLOCK)
                self._policy.publish(block_id, BlockRecord(each, parent, 0))
                new.append(block_id)
            before = each
        return new

    def _take(self) -> int | None:
        """A block for another content; None: there is none to be had."""
        if self._blank:
            return self._blank.pop()
        if not len(self._policy):
            return None
        block_id = self._policy.evict()
        del self._ids[self._hashes[block_id]]
        return block_id
