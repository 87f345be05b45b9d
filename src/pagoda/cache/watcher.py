"""What a cache tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pagoda.cache.block import BlockTable
from pagoda.cache.match import PrefixMatch
from pagoda.cache.miss import Miss
from pagoda.cache.origin import Origin
from pagoda.cache.prefix import BlockKey


@dataclass(slots=True)
class Lookup:
    """What came of looking for a sequence's prefix."""

    table: BlockTable
    """Whose it is, with the keys of all its full blocks where they were looked for."""
    num_tokens: int
    num_found: int
    """Tokens of those that were found."""
    num_found_blocks: int
    """Leading full blocks that every group has."""
    is_read: bool
    """The cache was asked; not so for a sequence that is to be computed whole."""
    is_caching: bool
    """The cache keeps prefixes at all."""
    miss: Miss | None = None
    """Why no more was found, once a watcher has said it; None: nobody says."""

    @classmethod
    def of(
        cls, table: BlockTable, num_tokens: int, match: PrefixMatch, *, is_caching: bool
    ) -> Lookup:
        """Of a match that nothing has been made of yet, or that has just been acquired."""
        num_blocks = len(match.block_ids) // table.num_groups
        return cls(table, num_tokens, match.num_tokens, num_blocks, match.is_read, is_caching)


@runtime_checkable
class CacheWatcher(Protocol):
    """Is told in the calls that change a cache: every method returns at once, raises nothing.

    Blocks of groups are told one by one.
    """

    def looked_up(self, lookup: Lookup) -> None:
        """A sequence begins; not told of one that resumes. Its blocks are announced afterwards."""
        ...

    def stored(self, key: BlockKey, group: int, table: BlockTable) -> None:
        """A block of a table can be found from now on, and no other of its key and group could."""
        ...

    def reused(self, idle_s: float) -> None:
        """A block that nobody had held for `idle_s` is held again, for what it holds."""
        ...

    def freed(self, table: BlockTable) -> None:
        """A sequence lets go of all its blocks, because it ended or has to come again; those that
        are committed can be found on."""
        ...

    def evicted(self, key: BlockKey, group: int, idle_s: float, by: Origin) -> None:
        """It cannot any more: nobody has held it for `idle_s`, and a sequence of `by` takes it."""
        ...

    def cleared(self) -> None:
        """Nothing can be found any more."""
        ...
