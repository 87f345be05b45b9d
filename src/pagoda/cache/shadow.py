"""A cache of keys alone: what a pool of another size, or under another policy, would find.

It has room for five blocks, and a sequence of four begins. Two are found, tails go before heads:

    was there        a b c d e     a and b are the head of what comes
    the path         a b x y       a, b found; x and y take the places of e and d
    is there then    a b x y c
"""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.prefix import BlockHash
from pagoda.cache.record import NO_BLOCK, BlockRecord


class Shadow:
    """Follows blocks of sequences by their hashes, as if each sequence took no time.

    A path is what is followed of a sequence, from its first block to its last; found is what comes
    before the first that is missing. Every block costs the same, however large the pool is.
    """

    def __init__(self, num_blocks: int, policy: EvictionPolicy) -> None:
        """`policy` is a new one, for a pool of `num_blocks`, at least 1."""
        self._policy = policy
        self._ids: dict[BlockHash, int] = {}
        """Of the blocks that are there."""
        self._hashes = [b""] * num_blocks
        """Of each block, what it holds or held last."""
        self._blank = list(range(num_blocks - 1, -1, -1))

    def look_up(self, path: Sequence[BlockHash]) -> int:
        """How many leading blocks of a sequence that begins are found.

        The others are there afterwards, as far as blocks that are not the sequence's make room.
        """
        found = self._found(path)
        for block_id in found:
            self._policy.hit(block_id)
        for block_id in reversed((*found, *self._put(path, found))):
            self._policy.add(block_id)
        return len(found)

    def renew(self, path: Sequence[BlockHash]) -> None:
        """A sequence ends: what it leaves behind is there, and counts as used last, by nobody."""
        found = self._found(path)
        for block_id in reversed(self._put(path, found)):
            self._policy.add(block_id)
        for number in reversed(range(len(found))):
            if self._ids.get(path[number]) == found[number]:  # else it has just made room
                self._policy.renew(found[number])

    def clear(self) -> None:
        """Nothing can be found any more."""
        for block_id in self._ids.values():
            self._policy.forget(block_id)
            self._blank.append(block_id)
        self._ids.clear()

    def __len__(self) -> int:
        return len(self._ids)

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
