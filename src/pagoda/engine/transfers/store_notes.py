"""Which blocks may be worth storing: a watcher of the cache that notes them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pagoda.cache.block import BlockTable
from pagoda.cache.origin import Origin
from pagoda.cache.prefix import BlockKey
from pagoda.cache.watcher import Lookup
from pagoda.tiers.names import BlockName

_MOST = 2**14
_FINDS_OF_SETTLED = 64
"""A prompt that is hot costs a step a note once in so many times."""


@dataclass(frozen=True, slots=True)
class StoreNote:
    """A block that can be found, or could when it was noted."""

    key: BlockKey
    group: int
    number: int
    """Which block of its sequence it is."""
    tenant: str
    reused: bool
    """It was found a second time."""

    @property
    def name(self) -> BlockName:
        return BlockName(self.key.hash, self.group, self.number)


class StoreNotes:
    """A `CacheWatcher`. Bounded: where blocks come quicker than they are stored, the oldest notes
    go."""

    def __init__(self, *, takes_new: bool, num_groups: int) -> None:
        """`takes_new`: blocks that were just computed are noted too."""
        self._takes_new = takes_new
        self._groups = range(num_groups)
        self._notes: OrderedDict[tuple[bytes, int], StoreNote] = OrderedDict()
        self._settled: dict[tuple[bytes, int], int] = {}
        """Blocks of the cache that every tier is known to have, and how often more they may be
        found before they are noted again: a tier may lose what is never read from it."""

    def __len__(self) -> int:
        return len(self._notes)

    def pop(self) -> StoreNote:
        """The oldest. Raises KeyError if there is none."""
        return self._notes.popitem(last=False)[1]

    def settle(self, note: StoreNote) -> None:
        """Every tier is known to have this block, which the cache has too: it is not noted again
        until it has been found many times more."""
        self._settled[note.key.hash, note.group] = _FINDS_OF_SETTLED

    # ---- what a cache tells ------------------------------------------------------------------

    def looked_up(self, lookup: Lookup) -> None:
        tenant, settled = lookup.table.origin.tenant, self._settled
        for number, key in enumerate(lookup.table.keys[: lookup.num_found_blocks]):
            for group in self._groups:
                finds_left = settled.get((key.hash, group), 0)
                if finds_left:
                    settled[key.hash, group] = finds_left - 1
                else:
                    self._note(StoreNote(key, group, number, tenant, reused=True))

    def stored(self, key: BlockKey, group: int, table: BlockTable) -> None:
        if self._takes_new:
            number = table.keys.index(key, table.num_committed)  # which is not counted yet
            self._note(StoreNote(key, group, number, table.origin.tenant, reused=False))

    def reused(self, idle_s: float) -> None:
        """Which block it is, `looked_up` tells."""

    def freed(self, table: BlockTable) -> None:
        """What is published can be stored on."""

    def evicted(self, key: BlockKey, group: int, idle_s: float, by: Origin) -> None:
        self._notes.pop((key.hash, group), None)
        self._settled.pop((key.hash, group), None)

    def cleared(self) -> None:
        self._notes.clear()
        self._settled.clear()

    def _note(self, note: StoreNote) -> None:
        place = (note.key.hash, note.group)
        before = self._notes.get(place)
        if before is None or note.reused:
            self._notes[place] = note
        if len(self._notes) > _MOST:
            self._notes.popitem(last=False)
