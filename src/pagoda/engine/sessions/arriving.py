"""Sessions that are being brought in: each holds what has come, and gives way where it is needed.

A session waits for tiers and for files, so nobody waits for one: it announces nothing, and where a
request is short of blocks, one that waits as well as one that runs, what has come of sessions is
free first, findable on, and they stop there.
"""

from __future__ import annotations

from pagoda.cache import BlockTable
from pagoda.engine.transfers.incoming import IncomingPrefix


class ArrivingSessions:
    """Those that hold blocks. The engine's thread alone calls it."""

    def __init__(self) -> None:
        self._prefixes: list[IncomingPrefix] = []
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._prefixes)

    def __contains__(self, prefix: IncomingPrefix) -> bool:
        """It holds what has come, up to now."""
        return prefix in self._prefixes

    def begin_to_hold(self, prefix: IncomingPrefix) -> None:
        """A session's, which holds what of it is cached from now on."""
        prefix.hold()
        self._prefixes.append(prefix)

    def free(self, prefix: IncomingPrefix) -> None:
        """Hold nothing of it any more; no effect where nothing is held."""
        if prefix in self._prefixes:
            self._prefixes.remove(prefix)
            prefix.free()

    def abandon(self) -> None:
        """Stop all of them."""
        for prefix in list(self._prefixes):
            self.free(prefix)

    def give_way(self, table: BlockTable) -> bool:
        """Stop the youngest that holds blocks which `table` may take. False: there is none."""
        for prefix in reversed(self._prefixes):
            if prefix.helps(table):
                self.free(prefix)
                return True
        return False

    def forget(self) -> None:
        """The cache was reset, and what they held with it."""
        self._prefixes = []
