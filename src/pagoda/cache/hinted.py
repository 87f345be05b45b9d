"""Cached blocks that their requests asked to keep, within bounds.

    goes first   behind a window, or hinted `none` | by the policy | hinted `session` | `pin`

A hint stays with its blocks until they are given up, until a later request hints otherwise at them,
or until their tenant keeps more than it may: then those of its sessions that were used longest ago
are the policy's again, and of its pinned blocks if it has no others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from pagoda.cache_hint import CacheHint

_TENANT_PART = 4
"""One tenant's hints keep a quarter of the pool at most,"""
_POOL_PART = 2
"""and those of all tenants without quotas half of it: whoever has most gives up some."""


class Mark(NamedTuple):
    """What a block was asked to be kept for, and by whom."""

    hint: CacheHint
    tenant: str


class _Kept:
    """Cached blocks of one tenant, the longest kept first; values say since when."""

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
        """Whether the first to go is pinned, since when it is kept, and its id."""
        sessions, pinned = self.lanes.values()
        block_id, since = next(iter((sessions or pinned).items()))
        return not sessions, since, block_id


class HintedBlocks:
    """Blocks that hints keep from the policy, which takes them for held meanwhile."""

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks`: of the pool."""
        self._most_of_tenant = num_blocks // _TENANT_PART
        self._most = num_blocks // _POOL_PART
        self._marks: dict[int, Mark] = {}
        """Of held and of cached blocks."""
        self._kept: dict[str, _Kept] = {}
        """Of each tenant that has any."""
        self._num_kept = 0

    @property
    def first(self) -> tuple[bool, int, int]:
        """Whether the first to go is pinned, since when it is kept, and its id. There is one."""
        return min(each.first for each in self._kept.values())

    def mark(self, block_id: int, mark: Mark) -> None:
        """A block will be kept here when its last reference is dropped, or is, for another hint."""
        is_here, before = block_id in self, self._marks.get(block_id)
        self._marks[block_id] = mark
        if is_here and before is not None:
            lanes = self._kept[mark.tenant].lanes
            lanes[mark.hint][block_id] = lanes[before.hint].pop(block_id)

    def is_marked(self, block_id: int) -> bool:
        return block_id in self._marks

    def add(self, block_id: int, now: int) -> list[int]:
        """A marked block is cached. Returns those that are beyond a bound now, and unmarked."""
        mark = self._marks[block_id]
        kept = self._kept.setdefault(mark.tenant, _Kept())
        kept.lanes[mark.hint][block_id] = now
        self._num_kept += 1
        if len(kept) > self._most_of_tenant:
            return [self._give_up(kept)]
        if self._num_kept > self._most:
            return [self._give_up(max(self._kept.values(), key=len))]
        return []

    def hit(self, block_id: int) -> None:
        """A kept block is held again; its mark stays."""
        mark = self._marks[block_id]
        kept = self._kept[mark.tenant]
        del kept.lanes[mark.hint][block_id]
        self._num_kept -= 1
        if not kept:
            del self._kept[mark.tenant]

    def evict(self) -> int:
        """The first to go, which is worth nothing any more. The caller sees to it that there is
        one."""
        *_, block_id = self.first
        self.forget(block_id)
        return block_id

    def forget(self, block_id: int) -> None:
        """What a block holds is worth nothing any more, wherever it is."""
        if block_id in self:
            self.hit(block_id)
        self._marks.pop(block_id, None)

    def is_consistent(self) -> bool:
        """Every block lies under its mark, is counted, and nobody keeps more than it may."""
        lanes = [
            (Mark(hint, tenant), block_id)
            for tenant, kept in self._kept.items()
            for hint, lane in kept.lanes.items()
            for block_id in lane
        ]
        return (
            all(self._marks.get(block_id) == mark for mark, block_id in lanes)
            and len(lanes) == self._num_kept <= self._most
            and all(0 < len(kept) <= self._most_of_tenant for kept in self._kept.values())
        )

    def _give_up(self, kept: _Kept) -> int:
        *_, block_id = kept.first
        self.forget(block_id)
        return block_id

    def __len__(self) -> int:
        return self._num_kept

    def __contains__(self, block_id: int) -> bool:
        """It is cached, and kept here."""
        mark = self._marks.get(block_id)
        kept = None if mark is None else self._kept.get(mark.tenant)
        return mark is not None and kept is not None and block_id in kept.lanes[mark.hint]

    def __iter__(self) -> Iterator[int]:
        """In the order in which they go."""
        lanes = (each.lanes for each in self._kept.values())
        ranked = [
            (hint is CacheHint.PIN, since, block_id)
            for each in lanes
            for hint, lane in each.items()
            for block_id, since in lane.items()
        ]
        return (block_id for *_, block_id in sorted(ranked))
