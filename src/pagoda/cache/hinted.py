"""Cached blocks that the policy gives up and that a hint keeps all the same, within bounds.

    goes first   passed by a window, or of a request that hinted `none`
                 whatever the policy gives up, unless a hint keeps it: then that is set apart
    goes last    what was set apart: `session` before `pin`, each the longest apart first

So a policy orders all blocks alike and learns of all their uses; a hint begins to count where the
policy's patience ends. What is set apart beyond a bound goes at once. A hint stays with its block
until that is given up, or until a later request hints otherwise at it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from pagoda.cache_hint import CacheHint

_TENANT_PART = 4
"""Of one tenant a quarter of the pool is set apart at most,"""
_POOL_PART = 2
"""and of all together half of it."""


class Mark(NamedTuple):
    """What a block was asked to be kept for, and by whom."""

    hint: CacheHint
    tenant: str


class HintCounts(NamedTuple):
    """What hints have done in a pool. Blocks."""

    num_kept: int
    """That are set apart now."""
    num_set_apart: int
    """That were, since the start."""
    num_found: int
    """Of those set apart: that a sequence found, and would not have without the hint."""
    num_given_up: int
    """Of those set apart: that were evicted all the same."""


class HintBounds:
    """How many blocks of a pool may be set apart, and are, in all of its partitions."""

    __slots__ = (
        "most",
        "most_of_tenant",
        "num_found",
        "num_given_up",
        "num_kept",
        "num_set_apart",
        "turns",
    )

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks`: of the pool."""
        self.most_of_tenant = num_blocks // _TENANT_PART
        self.most = num_blocks // _POOL_PART
        self.num_kept = 0
        self.turns = 0
        """Blocks that ever were set apart, or renewed."""
        self.num_set_apart = self.num_found = self.num_given_up = 0

    @property
    def counts(self) -> HintCounts:
        """As of now."""
        return HintCounts(self.num_kept, self.num_set_apart, self.num_found, self.num_given_up)


class _Kept:
    """Blocks of one tenant, the longest apart first; values are their turns among all."""

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        self.lanes: dict[CacheHint, OrderedDict[int, int]] = {
            CacheHint.SESSION: OrderedDict(),
            CacheHint.PIN: OrderedDict(),
        }

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    @property
    def first(self) -> tuple[bool, int, int]:
        """Whether the first to go is pinned, its turn, and its id."""
        sessions, pinned = self.lanes.values()
        block_id, turn = next(iter((sessions or pinned).items()))
        return not sessions, turn, block_id


class HintedBlocks:
    """The marks of one partition's blocks, and those of its cached blocks that are set apart."""

    def __init__(self, bounds: HintBounds) -> None:
        """`bounds` are shared by all partitions of a pool."""
        self._bounds = bounds
        self._marks: dict[int, Mark] = {}
        """Of blocks that can be found: held, cached or set apart."""
        self._kept: dict[str, _Kept] = {}
        """Of each tenant that has any."""
        self._num_kept = 0

    @property
    def first(self) -> tuple[bool, int, int]:
        """Whether the first to go is pinned, its turn, and its id. There is one."""
        return min(each.first for each in self._kept.values())

    def mark(self, block_id: int, mark: Mark) -> None:
        """A block will be set apart when the policy gives it up, or is, for another hint now."""
        is_apart, before = block_id in self, self._marks.get(block_id)
        self._marks[block_id] = mark
        if is_apart and before is not None and before != mark:
            lanes = self._kept[mark.tenant].lanes
            lanes[mark.hint][block_id] = lanes[before.hint].pop(block_id)

    def is_marked(self, block_id: int) -> bool:
        return block_id in self._marks

    def set_apart(self, block_id: int) -> int | None:
        """A marked block is given up by the policy. Returns the block that is beyond a bound now,
        which is worth nothing any more, if there is one."""
        mark = self._marks[block_id]
        kept = self._kept.setdefault(mark.tenant, _Kept())
        kept.lanes[mark.hint][block_id] = self._next_turn()
        self._count(1)
        self._bounds.num_set_apart += 1
        if len(kept) > self._bounds.most_of_tenant:
            return self._give_up(kept)
        if self._bounds.num_kept > self._bounds.most:
            return self._give_up(max(self._kept.values(), key=len))
        return None

    def renew(self, block_id: int) -> None:
        """A block that is set apart counts as the last one that was."""
        mark = self._marks[block_id]
        lane = self._kept[mark.tenant].lanes[mark.hint]
        lane[block_id] = self._next_turn()
        lane.move_to_end(block_id)

    def hit(self, block_id: int) -> None:
        """A block that is set apart is held again; its mark stays."""
        self._take(block_id)
        self._bounds.num_found += 1

    def _take(self, block_id: int) -> None:
        mark = self._marks[block_id]
        kept = self._kept[mark.tenant]
        del kept.lanes[mark.hint][block_id]
        self._count(-1)
        if not kept:
            del self._kept[mark.tenant]

    def evict(self) -> int:
        """The first to go, which is worth nothing any more. The caller sees to it that there is
        one."""
        *_, block_id = self.first
        return self._given_up(block_id)

    def forget(self, block_id: int) -> None:
        """What a block holds is worth nothing any more, wherever it is."""
        if block_id in self:
            self._take(block_id)
        self._marks.pop(block_id, None)

    def is_consistent(self) -> bool:
        """Every block lies under its mark, is counted, and no tenant keeps more than it may."""
        lanes = [
            (Mark(hint, tenant), block_id)
            for tenant, kept in self._kept.items()
            for hint, lane in kept.lanes.items()
            for block_id in lane
        ]
        most = self._bounds.most_of_tenant
        return (
            all(self._marks.get(block_id) == mark for mark, block_id in lanes)
            and len(lanes) == self._num_kept
            and self._num_kept <= self._bounds.num_kept <= self._bounds.most
            and all(0 < len(kept) <= most for kept in self._kept.values())
        )

    @property
    def marked(self) -> frozenset[int]:
        """Ids of all blocks with a mark."""
        return frozenset(self._marks)

    def _next_turn(self) -> int:
        self._bounds.turns += 1
        return self._bounds.turns

    def _count(self, change: int) -> None:
        self._num_kept += change
        self._bounds.num_kept += change

    def _give_up(self, kept: _Kept) -> int:
        *_, block_id = kept.first
        return self._given_up(block_id)

    def _given_up(self, block_id: int) -> int:
        self._bounds.num_given_up += 1
        self.forget(block_id)
        return block_id

    def __len__(self) -> int:
        """Blocks that are set apart."""
        return self._num_kept

    def __contains__(self, block_id: int) -> bool:
        """It is set apart."""
        mark = self._marks.get(block_id)
        kept = None if mark is None else self._kept.get(mark.tenant)
        return mark is not None and kept is not None and block_id in kept.lanes[mark.hint]

    def __iter__(self) -> Iterator[int]:
        """Those that are set apart, in the order in which they go."""
        ranked = [
            (hint is CacheHint.PIN, turn, block_id)
            for each in self._kept.values()
            for hint, lane in each.lanes.items()
            for block_id, turn in lane.items()
        ]
        return (block_id for *_, block_id in sorted(ranked))
