"""Copies of published blocks on their way to the tiers.

    commit ──> noted ──────> hand_out, at the end of a turn: copied ──> mover ──> tiers

No reference is held: a block that is not published any more when its turn comes is not stored. So
requests never wait for a store, and where stores fall behind, they are what is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pagoda.cache import CacheManager
from pagoda.engine.transfers.store_notes import StoreNotes
from pagoda.tiers.mover import TierMover

TURN_BYTES = 32 * 2**20
"""Copied in one turn, at most."""
_TURN_NOTES = 1024
"""Looked at in one turn, at most: most of a cache that is in full use is stored already."""

ExportBlock = Callable[[int], NDArray[np.uint8]]
"""A copy of a block's content."""


class TierStores:
    """Hands out what was noted. The engine's thread alone calls it."""

    def __init__(
        self,
        cache: CacheManager,
        export_block: ExportBlock,
        notes: StoreNotes,
        mover: TierMover,
        block_bytes: int,
    ) -> None:
        """`notes`: watches the cache."""
        self._cache = cache
        self._export_block = export_block
        self._notes = notes
        self._mover = mover
        self._block_bytes = block_bytes

    @property
    def num_waiting(self) -> int:
        """Blocks that are noted and not looked at."""
        return len(self._notes)

    @property
    def can_go_on(self) -> bool:
        """Some are, and there is room for their copies."""
        return len(self._notes) > 0 and self._mover.num_free_bytes >= self._block_bytes

    def hand_out(self) -> None:
        """Copy blocks that some tier wants and has not, as many as a turn allows."""
        left = min(TURN_BYTES, self._mover.num_free_bytes)
        for _ in range(min(len(self._notes), _TURN_NOTES)):
            if left < self._block_bytes:
                return
            note = self._notes.pop()
            if not self._mover.wants(note.name, reused=note.reused):
                continue
            block_id = self._cache.published(note.key, note.group)
            if block_id is not None:
                payload = self._export_block(block_id).data
                self._mover.store(note.tenant, note.name, payload, reused=note.reused)
                left -= self._block_bytes
