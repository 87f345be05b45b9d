"""What a sequence waits for whose prefix goes on outside the cache."""

from __future__ import annotations

from typing import Protocol

from pagoda.cache import BlockTable
from pagoda.cache.miss import Gated


class PrefixLoad(Protocol):
    """More of a prefix is looked for, or on its way into the cache."""

    @property
    def is_done(self) -> bool:
        """Nothing more comes of it: what has come can be found in the cache."""
        ...

    @property
    def gated(self) -> Gated | None:
        """What was found and not brought, because computing it is quicker."""
        ...

    @property
    def table(self) -> BlockTable | None:
        """What it holds for the sequence meanwhile; None: nothing any more."""
        ...

    def abandon(self) -> None:
        """The sequence that waits for it has ended. No effect if it is done."""
        ...


class NothingToLoad:
    """See `PrefixLoad`; nothing comes from anywhere."""

    is_done = True
    table = None
    gated = None

    def abandon(self) -> None:
        """There is nothing to end."""


NOTHING_TO_LOAD = NothingToLoad()
