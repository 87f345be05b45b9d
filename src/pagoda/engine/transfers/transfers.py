"""What an engine does with its tiers in each of its turns."""

from __future__ import annotations

import logging
import time
from typing import Protocol
from weakref import finalize

from pagoda.engine.transfers.stores import TierStores
from pagoda.engine.transfers.tier_loads import TierLoads
from pagoda.engine.transfers.transfer_stats import TransferStats
from pagoda.tiers.mover import TierMover

logger = logging.getLogger("pagoda")

_WAIT_S = 0.002
"""What an engine that has nothing to compute waits before it looks again who else has come."""
_CLOSE_S = 5.0
_LEFT_S = 1.0
"""What an engine that nobody closes takes to store what waits to be, at most."""


class Transfers(Protocol):
    """Loads and stores between a cache and its tiers. The engine's thread alone calls it."""

    @property
    def lossy_form(self) -> str | None:
        """That blocks lie in on all tiers; None: they lie there as they are. Any thread may ask."""
        ...

    def take_in(self) -> None:
        """At the begin of a turn: publish what has come."""
        ...

    def hand_out(self, *, is_idle: bool) -> None:
        """At the end of a turn: copy what is to be stored. `is_idle`: nothing could be computed, so
        that it waits a moment for what is to come, if anything is."""
        ...

    def abandon_loads(self) -> None:
        """What is on its way is not wanted any more."""
        ...

    @property
    def has_stores(self) -> bool:
        """`hand_out` has more to do, and can."""
        ...

    @property
    def awaits_room(self) -> bool:
        """`hand_out` has more to do, and can once tiers have taken what they were given."""
        ...

    def stats(self) -> TransferStats:
        """As of now; any thread may ask."""
        ...

    def close(self) -> None:
        """Store what waits to be, for some seconds at most, and give the tiers up."""
        ...


class NoTransfers:
    """Blocks are in the cache or nowhere."""

    lossy_form: str | None = None
    has_stores = awaits_room = False

    def take_in(self) -> None:
        """Nothing comes."""

    def hand_out(self, *, is_idle: bool) -> None:
        """To nobody."""

    def abandon_loads(self) -> None:
        """Nothing is."""

    def stats(self) -> TransferStats:
        return TransferStats()

    def close(self) -> None:
        """Nothing is open."""


class TierTransfers:
    """See `Transfers`."""

    def __init__(
        self,
        loads: TierLoads,
        stores: TierStores,
        mover: TierMover,
        lossy_form: str | None = None,
    ) -> None:
        """`lossy_form`: see `Transfers`."""
        self.loads = loads
        self._stores = stores
        self._mover = mover
        self.lossy_form = lossy_form
        # With an engine that nobody closes, and at the process's end.
        self._end = finalize(self, mover.close, _LEFT_S)
        self._has_failed = False
        """A copy could not be made: none is tried any more."""

    def take_in(self) -> None:
        self.loads.take_in()

    def hand_out(self, *, is_idle: bool) -> None:
        if is_idle and self.loads.num_under_way:
            self._mover.wait(_WAIT_S)
        if self._stores.num_waiting and not self._has_failed:
            try:
                self._stores.hand_out(waits=is_idle)
            except Exception:  # nothing has changed but what is stored
                logger.exception("blocks could not be copied for the tiers; no more are stored")
                self._has_failed = True

    def abandon_loads(self) -> None:
        self.loads.abandon()

    @property
    def has_stores(self) -> bool:
        return self._stores.can_go_on and not self._has_failed

    @property
    def awaits_room(self) -> bool:
        waits = self._stores.num_waiting > 0 and not self._stores.can_go_on
        return waits and not self._has_failed

    def stats(self) -> TransferStats:
        loads = self.loads
        return TransferStats(
            self._mover.stats(),
            num_tokens_asked=loads.num_tokens_asked,
            num_tokens_loaded=loads.num_tokens_loaded,
            lossy_form=self.lossy_form,
            endings=loads.endings.copy(),
        )

    def close(self) -> None:
        until = time.monotonic() + _CLOSE_S
        while self._stores.num_waiting and not self._has_failed and time.monotonic() < until:
            self.hand_out(is_idle=False)
            if not self.has_stores:  # what waits is as much as may
                self._mover.wait_until_stored(until - time.monotonic())
        if not self._has_failed:
            self._stores.finish()
        self._end.detach()
        self._mover.close(max(0.0, until - time.monotonic()))
