"""Block ids and who holds them.

Every block is in exactly one of three states:

    blank       nobody holds it and it holds nothing worth finding
    referenced  one or more sequences hold it
    cached      nobody holds it, but its content can still be found: given up last, by the policy;
                what was passed before all others, what hints keep after it

        blank --allocate--> referenced --release(keep=False)--> blank
                            referenced --release(keep=True)---> cached --acquire--> referenced
                                       <---allocate (evicts)--- cached
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping

from pagoda.cache.allowance import NOTHING_SPOKEN_FOR, Allowance
from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.hinted import Mark
from pagoda.cache.partitions import Partitions
from pagoda.cache.quota import Quota
from pagoda.cache.record import BlockRecord
from pagoda.errors import InvalidOptionError


class BlockPool:
    """Reference counts and the free blocks of one storage. Every operation is O(1), but for one
    step for each tenant with a quota or with hinted blocks where blocks are given up."""

    def __init__(
        self,
        num_blocks: int,
        new_policy: Callable[[], EvictionPolicy],
        quotas: Mapping[str, Quota],
    ) -> None:
        """`new_policy` is called once for each tenant with a quota, and once for all others."""
        if num_blocks < 1:
            raise InvalidOptionError("num_blocks", num_blocks, "must be at least 1")
        self.num_blocks = num_blocks
        self.partitions = Partitions(num_blocks, new_policy, quotas)
        self._make_blank()

    def _make_blank(self) -> None:
        self.ref_counts = array("i", bytes(self.num_blocks * array("i").itemsize))
        self._blank = list(range(self.num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds: blank and cached ones."""
        return len(self._blank) + self.num_cached

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks whose content can still be found."""
        return self.partitions.num_cached

    def allowance(self, tenant: str, spoken_for: Mapping[str, int]) -> Allowance:
        """Blocks that `allocate` may give to a tenant, beside those that are spoken for."""
        return self.partitions.allowance(tenant, self.num_free, spoken_for)

    def helps(self, taker: str, tenant: str) -> bool:
        """Blocks that `tenant` drops are some that `taker` may have: not if its cap leaves it less
        than the pool does, nor if all that `tenant` holds is due to that."""
        if taker == tenant:
            return True
        is_capped = self.allowance(taker, NOTHING_SPOKEN_FOR).is_capped
        return not (is_capped or self.partitions.is_within_floor(tenant))

    def allocate(self, tenant: str) -> int:
        """A block with one reference: a blank one, or else one that was cached, which the caller
        forgets the content of.

        Raises IndexError when every block is referenced; callers look at `allowance` first.
        """
        taker = self.partitions.of(tenant)
        if self._blank and not taker.is_full:
            block_id = self._blank.pop()
        else:
            if not self.num_cached:
                raise IndexError("every block of the pool is referenced")
            given = None
            while given is None:  # a hint may keep what a policy gives up, but not all
                given = self.partitions.giver(taker).cached.evict()
            block_id = given
        self.ref_counts[block_id] = 1
        self.partitions.hold(block_id, taker)
        return block_id

    def publish(self, block_id: int, record: BlockRecord) -> None:
        """A referenced block can be found from now on."""
        self.partitions.of_block(block_id).cached.publish(block_id, record)

    def acquire(self, block_id: int) -> bool:
        """One more reference to a block that is referenced or cached. False: its policy had given
        it up, and it is to be published again."""
        is_known = True
        if self.ref_counts[block_id] == 0:
            partition = self.partitions.of_block(block_id)
            is_known = partition.cached.hit(block_id)
            partition.num_held += 1
        self.ref_counts[block_id] += 1
        return is_known

    def release(self, block_id: int, *, keep: bool, is_passed: bool = False) -> None:
        """One reference less; the last one makes it cached if `keep`, else blank.

        is_passed: nobody is likely to look for it: behind a window, or by its request's hint.
        """
        assert self.ref_counts[block_id] > 0, f"block {block_id} is released once too often"
        self.ref_counts[block_id] -= 1
        if self.ref_counts[block_id]:
            return
        if keep:
            self.partitions.keep(block_id, is_passed=is_passed)
        else:
            self.partitions.of_block(block_id).num_held -= 1
            self._blank.append(block_id)

    def mark(self, block_id: int, mark: Mark) -> None:
        """A request asks to keep a block that can be found."""
        self.partitions.of_block(block_id).cached.mark(block_id, mark)

    def renew(self, block_id: int) -> None:
        """A cached block counts as if its last reference were dropped just now."""
        self.partitions.renew(block_id)

    def is_cached(self, block_id: int) -> bool:
        """Nobody holds the block; meaningful only for a block whose content can be found."""
        return self.ref_counts[block_id] == 0

    def forget(self, block_ids: Iterable[int]) -> None:
        """What these blocks hold is worth nothing any more: cached ones among them become blank.

        The caller forgets their contents.
        """
        for block_id in block_ids:
            self.partitions.of_block(block_id).cached.forget(block_id)
            if self.ref_counts[block_id] == 0:
                self._blank.append(block_id)

    def reset(self) -> None:
        """Every block is blank, whatever it was. The caller forgets all contents."""
        self.partitions.reset()
        self._make_blank()

    def blank_ids(self) -> list[int]:
        """Ids of the blank blocks, the next one to be handed out last."""
        return list(self._blank)

    def cached_ids(self) -> list[int]:
        """Ids of the cached blocks; of each partition in the order in which they go, where that is
        fixed."""
        return [block_id for partition in self.partitions for block_id in partition.cached]
