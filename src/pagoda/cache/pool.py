"""Block ids and who holds them.

Every block is in exactly one of three states:

    blank       nobody holds it and it holds nothing worth finding
    referenced  one or more sequences hold it
    cached      nobody holds it, but its content can still be found: given up last, by the policy;
                what was let go behind a window before all others

        blank --allocate--> referenced --release(keep=False)--> blank
                            referenced --release(keep=True)---> cached --acquire--> referenced
                                       <---allocate (evicts)--- cached
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.record import BlockRecord
from pagoda.errors import InvalidOptionError


class BlockPool:
    """Reference counts and the free blocks of one storage. Every operation is O(1)."""

    def __init__(self, num_blocks: int, policy: EvictionPolicy) -> None:
        if num_blocks < 1:
            raise InvalidOptionError("num_blocks", num_blocks, "must be at least 1")
        self.num_blocks = num_blocks
        self._cached = policy
        self._passed = LRU()
        """Cached blocks that a window has passed, of little worth alone."""
        self._make_blank()

    def _make_blank(self) -> None:
        self.ref_counts = array("i", bytes(self.num_blocks * array("i").itemsize))
        self._blank = list(range(self.num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated: blank and cached ones."""
        return len(self._blank) + self.num_cached

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks whose content can still be found."""
        return len(self._cached) + len(self._passed)

    def allocate(self) -> int:
        """A block with one reference: a blank one, one that was passed, or else the first that the
        policy gives up. The caller forgets what a cached one held.

        Raises IndexError when every block is referenced; callers look at `num_free` first.
        """
        if self._blank:
            block_id = self._blank.pop()
        else:
            if not self.num_cached:
                raise IndexError("every block of the pool is referenced")
            if self._passed:
                block_id = self._passed.evict()
                self._cached.forget(block_id)
            else:
                block_id = self._cached.evict()
        self.ref_counts[block_id] = 1
        return block_id

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """A referenced block can be found from now on."""
        self._cached.publish(block_id, record)

    def acquire(self, block_id: int) -> None:
        """One more reference to a block that is referenced or cached."""
        if self.ref_counts[block_id] == 0:
            if block_id in self._passed:
                self._passed.hit(block_id)
            else:
                self._cached.hit(block_id)
        self.ref_counts[block_id] += 1

    def release(self, block_id: int, *, keep: bool, is_passed: bool = False) -> None:
        """One reference less; the last one makes it cached if `keep`, else blank.

        is_passed: a window has gone past it, and nobody is likely to look for it.
        """
        assert self.ref_counts[block_id] > 0, f"block {block_id} is released once too often"
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id] == 0:
            if keep:
                (self._passed if is_passed else self._cached).add(block_id)
            else:
                self._blank.append(block_id)

    def renew(self, block_id: int) -> None:
        """A cached block counts as if its last reference were dropped just now."""
        if block_id in self._passed:
            self._passed.hit(block_id)
            self._cached.add(block_id)
        else:
            self._cached.renew(block_id)

    def is_cached(self, block_id: int) -> bool:
        """Nobody holds the block; meaningful only for a block whose content can be found."""
        return self.ref_counts[block_id] == 0

    def forget(self, block_ids: Iterable[int]) -> None:
        """What these blocks hold is worth nothing any more: cached ones among them become blank.

        The caller forgets their contents.
        """
        for block_id in block_ids:
            self._cached.forget(block_id)
            self._passed.forget(block_id)
            if self.ref_counts[block_id] == 0:
                self._blank.append(block_id)

    def reset(self) -> None:
        """Every block is blank, whatever it was. The caller forgets all contents."""
        for block_id in range(self.num_blocks):
            self._cached.forget(block_id)
        self._passed = LRU()
        self._make_blank()

    def blank_ids(self) -> list[int]:
        """Ids of the blank blocks, the next one to be handed out last."""
        return list(self._blank)

    def cached_ids(self) -> list[int]:
        """Ids of the cached blocks, in the order in which they go where that is fixed."""
        return [*self._passed, *self._cached]
