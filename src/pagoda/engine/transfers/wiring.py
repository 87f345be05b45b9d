"""An engine's tiers, put together in the order in which its parts come into being."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pagoda.cache import AttentionWindow, CacheManager
from pagoda.cache.spec import CacheSpec
from pagoda.cache.watcher import CacheWatcher
from pagoda.engine.prefill_rate import PrefillRate
from pagoda.engine.transfers.store_notes import StoreNotes
from pagoda.engine.transfers.stores import TierStores
from pagoda.engine.transfers.tier_loads import TierLoads, worth_loading
from pagoda.engine.transfers.transfers import TierTransfers
from pagoda.scheduling.sequence import open_table
from pagoda.storage.block_storage import BlockStorage
from pagoda.tiers.mover import TierMover
from pagoda.tiers.shelf import Shelf

_REMEMBERED = 2
"""Times as many blocks as the pool has, those that are on their way there or out of it among
them."""


class TierWiring:
    """First what watches the cache, then, once that is there, what uses it."""

    def __init__(
        self, shelves: Sequence[Shelf], spec: CacheSpec, lossy_form: str | None = None
    ) -> None:
        """`lossy_form`: that blocks lie in on all shelves."""
        num_groups = len(spec.groups)
        self._block_bytes = spec.block_bytes
        self._lossy_form = lossy_form
        self._mover = TierMover(shelves, spec.block_bytes * num_groups)
        self._notes = StoreNotes(takes_new=self._mover.stores_all, num_groups=num_groups)

    @property
    def shelves(self) -> tuple[Shelf, ...]:
        """The nearest first."""
        return self._mover.shelves

    @property
    def watchers(self) -> tuple[CacheWatcher, ...]:
        """Of the cache that is to be made."""
        return (self._notes,)

    def transfers(
        self,
        cache: CacheManager,
        storage: BlockStorage,
        retention: AttentionWindow,
        prefill_rate: PrefillRate,
    ) -> TierTransfers:
        """`retention`: of sequences whose requests do not say theirs."""
        for shelf in self.shelves:
            shelf.known.bound(_REMEMBERED * storage.num_blocks)
        loads = TierLoads(
            cache,
            storage.import_blocks,
            partial(open_table, cache, retention),
            self._mover,
            worth_loading,
            prefill_rate,
        )
        args = (cache, storage.begin_export, self._notes, self._mover, self._block_bytes)
        return TierTransfers(loads, TierStores(*args), self._mover, self._lossy_form)
