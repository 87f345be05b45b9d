"""One sequence's prefix on its way from the tiers: what a scheduler's sequence waits for.

looking     its blocks are announced, the tiers are asked where they are
loading     as many as pay are on their way, each is published when it has come
done        nothing is held; the rest is computed
"""

from __future__ import annotations

from pagoda.cache import BlockTable
from pagoda.cache.miss import Gated
from pagoda.engine.transfers.incoming import IncomingPrefix
from pagoda.tiers.look_up import LookUp
from pagoda.tiers.rows_from_shelves import RowsFromShelves


class PrefixFromTiers:
    """See `pagoda.scheduling.prefix_load.PrefixLoad`. The engine's thread alone calls it."""

    def __init__(
        self,
        prefix: IncomingPrefix,
        look_up: LookUp,
        began: float,
        *,
        answer_s: float,
        allowance_s: float,
    ) -> None:
        """`prefix` has been claimed. `answer_s`: what the look-up may take. `allowance_s`: what
        look-up and load may take together."""
        self.prefix: IncomingPrefix | None = prefix
        """None: it is done."""
        self.look_up = look_up
        self.source: RowsFromShelves | None = None
        """Its rows on their way; None: the load has not begun."""
        self.gated: Gated | None = None
        """What was found and not loaded, because computing it is quicker."""
        self.deadline = began + min(answer_s, allowance_s)
        """Of the look-up, and once the load has begun, of the load."""
        self._allowance_s = allowance_s

    @property
    def is_done(self) -> bool:
        return self.prefix is None

    @property
    def table(self) -> BlockTable | None:
        return None if self.prefix is None else self.prefix.table

    def begin(self, source: RowsFromShelves, now: float) -> None:
        """The look-up was answered, and the load begins. What came between, while the engine was in
        the middle of a step, is not counted against it."""
        self.source = source
        self.deadline = now + self._allowance_s - self.look_up.seconds

    def abandon(self) -> None:
        """Nothing more is to come: let go of what is held, and of what is on its way."""
        prefix = self.prefix
        if prefix is not None:
            self.forget()
            prefix.free()

    def forget(self) -> None:
        """The same after a cache was reset, which holds nothing for anybody any more."""
        self.prefix = None
        self.look_up.abandon()
        if self.source is not None:
            self.source.abandon()
