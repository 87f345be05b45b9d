"""Copies of published blocks on their way to the tiers.

    commit ──> noted ──────> hand_out: a copy begins ──────> the next one: mover ──> tiers

No reference is held: a block that is not published any more when its turn comes is not stored. So
requests never wait for a store, and where stores fall behind, they are what is dropped. Where the
device computes on its own, a copy is there a turn later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pagoda.cache import CacheManager
from pagoda.engine.transfers.store_notes import StoreNote, StoreNotes
from pagoda.engine.transfers.turn import TURN_BYTES
from pagoda.storage.block_copies import BlockCopies
from pagoda.tiers.mover import TierMover

_TURN_NOTES = 1024
"""Looked at in one turn, at most: most of a cache that is in full use is stored already."""
_MOST_COPIES = 2
"""Under way at once."""

BeginExport = Callable[[Sequence[int]], BlockCopies]


class TierStores:
    """Hands out what was noted. The engine's thread alone calls it."""

    def __init__(
        self,
        cache: CacheManager,
        begin_export: BeginExport,
        notes: StoreNotes,
        mover: TierMover,
        block_bytes: int,
    ) -> None:
        """`notes`: watches the cache."""
        self._cache = cache
        self._begin_export = begin_export
        self._notes = notes
        self._mover = mover
        self._block_bytes = block_bytes
        self._copies: deque[tuple[BlockCopies, list[StoreNote]]] = deque()
        """Those under way, and of what."""

    @property
    def num_waiting(self) -> int:
        """Blocks that are noted, or being copied."""
        return len(self._notes) + sum(len(notes) for _, notes in self._copies)

    @property
    def can_go_on(self) -> bool:
        """Some wait, and there is room for their copies."""
        has_room = self._mover.num_free_bytes >= self._block_bytes
        return bool(self._copies) or (len(self._notes) > 0 and has_room)

    def hand_out(self, *, waits: bool = False) -> None:
        """Give the mover what has been copied, and begin to copy blocks that some tier wants and
        has not, as many as a turn allows. `waits`: for the copy that began first, since there is
        nothing else to do."""
        self._give()
        if len(self._copies) < _MOST_COPIES:
            chosen = self._choose()
            if chosen:
                self._copies.append((self._begin_export(list(chosen)), list(chosen.values())))
        if waits and self._copies:
            self._copies[0][0].wait()
        self._give()

    def finish(self) -> None:
        """Wait for the copies that are under way, and give them to the mover."""
        self._give(waits=True)

    def _choose(self) -> dict[int, StoreNote]:
        """Of what is noted, by block."""
        chosen: dict[int, StoreNote] = {}
        most = min(TURN_BYTES, self._mover.num_free_bytes) // self._block_bytes
        for _ in range(min(len(self._notes), _TURN_NOTES)):
            if len(chosen) >= most:
                break
            note = self._notes.pop()
            block_id = self._cache.published(note.key, note.group)
            if block_id is None:  # it has gone since, or a window has let it go
                continue
            if self._mover.wants(note.name, reused=note.reused):
                chosen[block_id] = note
            elif note.reused and self._mover.has(note.name):
                self._notes.settle(note)
        return chosen

    def _give(self, *, waits: bool = False) -> None:
        while self._copies and (waits or self._copies[0][0].is_done):
            copies, notes = self._copies.popleft()
            for payload, note in zip(copies.wait(), notes, strict=True):
                self._mover.store(note.tenant, note.name, payload.data, reused=note.reused)
