"""Blocks of tenants with quotas apart from those of all others, out of one pool.

    bob: floor 3, cap 6   | held held | cached |          2 held, 1 cached: nobody else evicts that
    carol: floor 2        |                               holds nothing: 2 blocks are hers at once
    all others            | held held held | cached cached cached |

Others may cache in what carol has not taken, but never hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pagoda.cache.allowance import Allowance
from pagoda.cache.cached_blocks import CachedBlocks
from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.hinted import HintBounds, HintCounts
from pagoda.cache.quota import NO_QUOTA, Quota


class Partition:
    """The blocks of one tenant with a quota, or of all tenants without."""

    __slots__ = ("cached", "num_held", "quota")

    def __init__(self, cached: CachedBlocks, quota: Quota = NO_QUOTA) -> None:
        self.cached = cached
        self.quota = quota
        self.num_held = 0

    @property
    def num_due(self) -> int:
        """Blocks of the floor that its sequences do not hold yet."""
        return self.num_due_beside(0)

    def num_due_beside(self, num_spoken_for: int) -> int:
        """The same, once its sequences hold so many more."""
        return max(0, self.quota.floor - self.num_held - num_spoken_for)

    def num_beyond_cap(self, num_spoken_for: int) -> int:
        """Of so many blocks more, those that its sequences cannot get."""
        cap = self.quota.cap
        return 0 if cap is None else max(0, self.num_held + num_spoken_for - cap)

    @property
    def is_full(self) -> bool:
        """It has all that it may have, so that it gives up a block of its own for another."""
        cap = self.quota.cap
        return cap is not None and self.num_held + len(self.cached) >= cap


class Partitions:
    """Which blocks a sequence may take, and whose goes for it."""

    def __init__(
        self,
        num_blocks: int,
        new_policy: Callable[[], EvictionPolicy],
        quotas: Mapping[str, Quota],
    ) -> None:
        """`new_policy` is called once for each tenant with a quota, and once for all others."""
        self._new_policy = new_policy
        self._bounds = HintBounds(num_blocks)
        self._takes_turns = bool(quotas)
        self._common = Partition(self._new_cached())
        self._own = {
            tenant: Partition(self._new_cached(), quota) for tenant, quota in quotas.items()
        }
        self._all = (self._common, *self._own.values())
        self._of_block = [self._common] * num_blocks
        """Of those that are held or cached."""
        self._now = 0
        """Blocks that were released or renewed."""

    def of(self, tenant: str) -> Partition:
        return self._own.get(tenant, self._common)

    def of_block(self, block_id: int) -> Partition:
        """Whose it is, of a block that is held or cached."""
        return self._of_block[block_id]

    def hold(self, block_id: int, partition: Partition) -> None:
        """A block that nobody had is held."""
        self._of_block[block_id] = partition
        partition.num_held += 1

    def keep(self, block_id: int, *, is_passed: bool) -> None:
        """A block that was held is cached."""
        partition = self._of_block[block_id]
        partition.num_held -= 1
        self._now += 1
        partition.cached.add(block_id, self._now, is_passed=is_passed)

    def renew(self, block_id: int) -> None:
        """A cached block counts as if it had been kept just now."""
        self._now += 1
        self._of_block[block_id].cached.renew(block_id, self._now)

    def allowance(self, tenant: str, num_free: int, spoken_for: Mapping[str, int]) -> Allowance:
        """Of a tenant's sequences, once others have taken what is `spoken_for`, by tenant."""
        num_own = spoken_for.get(tenant, 0)
        own = self._own.get(tenant)
        num_due = num_in_vain = 0
        for name, each in self._own.items():
            num_more = spoken_for.get(name, 0)
            num_in_vain += each.num_beyond_cap(num_more)
            if each is not own:
                num_due += each.num_due_beside(num_more)
        in_pool = num_free - sum(spoken_for.values()) + num_in_vain - num_due
        if own is None:
            return Allowance(in_pool)
        cap = own.quota.cap
        within_cap = None if cap is None else cap - own.num_held - num_own
        own_due = own.num_due_beside(num_own)
        # what others' sequences will want beyond what they can have is not taken off a floor
        return Allowance(max(in_pool, own_due), within_cap, own_due)

    def is_within_floor(self, tenant: str) -> bool:
        """All that a tenant's sequences hold is due to it: others gain nothing if they drop it."""
        own = self._own.get(tenant)
        return own is not None and own.num_held <= own.quota.floor

    def giver(self, taker: Partition) -> Partition:
        """Whose block goes for a sequence of `taker`, of those that may give one up.

        Whoever has blocks that were passed, or else has one that nobody has wanted for longest; one
        that no hint set apart, if there is any.
        """
        if not self._own or taker.is_full:
            return taker
        givers = [
            each for each in self._all if len(each.cached) > (0 if each is taker else each.num_due)
        ]
        return min(givers, key=lambda each: each.cached.turn)

    @property
    def num_cached(self) -> int:
        """Of all partitions."""
        return sum(len(each.cached) for each in self._all)

    @property
    def hints(self) -> HintCounts:
        """What hints have done."""
        return self._bounds.counts

    def reset(self) -> None:
        """Nobody holds a block, and none is cached. Policies by name are new ones: a call that
        broke off in the middle may have left the old ones in pieces."""
        self._bounds.num_kept = 0
        for each in self._all:
            each.num_held = 0
            each.cached = self._new_cached()

    def _new_cached(self) -> CachedBlocks:
        return CachedBlocks(self._new_policy(), self._bounds, takes_turns=self._takes_turns)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._all)
