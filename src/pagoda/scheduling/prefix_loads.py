"""Who is asked for what the cache does not have of a prefix.

    sequence fits ── begin ──> load, not done      passed over until it is; others go on
                               load, done          begins with what the cache has by now

A sequence asks once a stay. A load takes blocks of the cache as sequences do, through a table of
its own; where a sequence that runs is short of blocks, loads give theirs up first. What nobody
waits for gives way to sequences that wait, too.
"""

from __future__ import annotations

from typing import Protocol

from pagoda.cache import BlockTable, PrefixMatch
from pagoda.scheduling.prefix_load import NOTHING_TO_LOAD, PrefixLoad
from pagoda.scheduling.sequence import Sequence


class PrefixLoads(Protocol):
    """Brings prefixes into the cache, while the scheduler goes on. Every call returns at once."""

    def begin(self, sequence: Sequence, match: PrefixMatch) -> PrefixLoad:
        """What a sequence has to wait for that fits and whose prefix is cached as far as `match`.

        It may take references to the blocks of the match, and announce those that follow.
        """
        ...

    def make_room(self, table: BlockTable) -> bool:
        """End the loads that hold blocks which the sequence of `table` may take in their place.

        False: there are none. What they have brought can be found on.
        """
        ...

    def give_way(self, table: BlockTable) -> bool:
        """End what holds blocks that the sequence of `table`, which waits, may take in their place,
        and that no sequence waits for. False: there is none."""
        ...

    def start_over(self) -> None:
        """The cache was reset: forget all loads, and what they held."""
        ...


class NoLoads:
    """Prefixes are in the cache or nowhere."""

    def begin(self, sequence: Sequence, match: PrefixMatch) -> PrefixLoad:
        return NOTHING_TO_LOAD

    def make_room(self, table: BlockTable) -> bool:
        return False

    def give_way(self, table: BlockTable) -> bool:
        return False

    def start_over(self) -> None:
        """Nothing was begun."""
