"""What an engine does with its tiers in each of its turns."""

from __future__ import annotations

import logging
from typing import Protocol

from pagoda.engine.transfers.loads import TierLoads
from pagoda.engine.transfers.stores import TierStores
from pagoda.tiers.mover import TierMover
from pagoda.tiers.shelf_stats import ShelfStats

logger = logging.getLogger("pagoda")

_WAIT_S = 0.002
"""What an engine that has nothing to compute waits before it looks again who else has come."""
_CLOSE_S = 5.0


class Transfers(Protocol):
    """Loads and stores between a cache and its tiers. The engine's thread alone calls it."""

    def take_in(self) -> None:
        """At the begin of a turn: publish what has come."""
        ...

    def hand_out(self, *, is_idle: bool) -> None:
        """At the end of a turn: copy what is to be stored. `is_idle`: nothing could be computed, so
        that it waits a moment for what is to come, if anything is."""
        ...

    @property
    def has_stores(self) -> bool:
        """`hand_out` has more to do."""
        ...

    def stats(self) -> tuple[ShelfStats, ...]:
        """Of each tier, as of now; any thread may ask."""
        ...

    def close(self) -> None:
        """Store what waits to be, for some seconds at most, and give the tiers up."""
        ...


class NoTransfers:
    """Blocks are in the cache or nowhere."""

    has_stores = False

    def take_in(self) -> None:
        """Nothing comes."""

    def hand_out(self, *, is_idle: bool) -> None:
        """To nobody."""

    def stats(self) -> tuple[ShelfStats, ...]:
        return ()

    def close(self) -> None:
        """Nothing is open."""


class TierTransfers:
    """See `Transfers`."""

    def __init__(self, loads: TierLoads, stores: TierStores, mover: TierMover) -> None:
        self.loads = loads
        self._stores = stores
        self._mover = mover
        self._has_failed = False
        """A copy could not be made: none is tried any more."""

    def take_in(self) -> None:
        self.loads.take_in()

    def hand_out(self, *, is_idle: bool) -> None:
        if is_idle and self.loads.num_under_way:
            self._mover.wait(_WAIT_S)
        if self._stores.num_waiting and not self._has_failed:
            try:
                self._stores.hand_out()
            except Exception:  # nothing has changed but what is stored
                logger.exception("blocks could not be copied for the tiers; no more are stored")
                self._has_failed = True

    @property
    def has_stores(self) -> bool:
        return self._stores.num_waiting > 0 and not self._has_failed

    def stats(self) -> tuple[ShelfStats, ...]:
        return self._mover.stats()

    def close(self) -> None:
        while self.has_stores:
            num_waiting = self._stores.num_waiting
            self.hand_out(is_idle=False)
            if self._stores.num_waiting == num_waiting:
                break  # what waits already is as much as may
        self._mover.close(_CLOSE_S)
