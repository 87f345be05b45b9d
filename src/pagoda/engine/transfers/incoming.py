"""A prefix that comes into the cache block by block, and holds it there meanwhile.

It has a block table of its own, over the tokens that are to come and no others. So it lives as a
sequence does: what is announced others wait for, what is committed others find, and where it ends,
by whatever, its references are dropped.

    block      | 0 … 3     | 4 5 6    | 7 … 11
                cached      have come  announced
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagoda.cache import BlockTable, CacheManager
from pagoda.tiers.names import BlockName
from pagoda.tiers.segment import Row
from pagoda.tiers.shelf import Payloads
from pagoda.tiers.tier import FrameBytes

ImportBlocks = Callable[[Sequence[int], Sequence[FrameBytes]], None]
"""Overwrites the contents of distinct blocks."""


class IncomingPrefix:
    """Whole blocks of one sequence's tokens, from the first that the cache does not have."""

    def __init__(
        self,
        cache: CacheManager,
        import_blocks: ImportBlocks,
        table: BlockTable,
        tokens: Sequence[int],
        known: BlockTable | None = None,
    ) -> None:
        """`table`: new, of the sequence's tenant, salt and retention; for `tokens` alone, of which
        only whole blocks are looked at. `known`: another table of the sequence, whose keys are."""
        self._cache = cache
        self._import_blocks = import_blocks
        self._table = table
        self.tokens = tokens[: len(tokens) // cache.block_size * cache.block_size]
        self._num_blocks = 0
        if known is not None:
            table.take_keys(known, self.tokens, cache.block_size)

    @property
    def tenant(self) -> str:
        return self._table.origin.tenant

    @property
    def table(self) -> BlockTable:
        """Its blocks; to be read alone."""
        return self._table

    @property
    def num_blocks(self) -> int:
        """Leading blocks that are in the cache, and held."""
        return self._num_blocks

    @property
    def num_missing(self) -> int:
        """Blocks that are to come."""
        return len(self.tokens) // self._cache.block_size - self._num_blocks

    def claim(self) -> bool:
        """Hold what is cached and announce the rest. False: nothing is to come, or another brings
        it or computes it already; nothing is held then."""
        match = self._cache.match(self._table, self.tokens)
        if match.in_flight is not None:
            return False
        self._num_blocks = len(match.block_ids) // self._table.num_groups
        if self.num_missing == 0:
            return False
        self._cache.acquire(self._table, self.tokens, match, counted=False)
        return True

    def hold(self) -> None:
        """Hold what is cached and announce nothing: whoever needs the rest computes it."""
        match = self._cache.match(self._table, self.tokens)
        self._num_blocks = len(match.block_ids) // self._table.num_groups
        self._cache.acquire(self._table, self.tokens, match, counted=False, announced=False)

    def helps(self, table: BlockTable) -> bool:
        """It holds blocks that `table` may take once they are free."""
        return self._num_blocks > 0 and self._cache.helps(table, self.tenant)

    def rows(self) -> list[Row]:
        """The names of the blocks that are to come, in order."""
        groups = range(self._table.num_groups)
        keys = enumerate(self._table.keys[self._num_blocks :], self._num_blocks)
        return [[BlockName(key.hash, group, number) for group in groups] for number, key in keys]

    def put(self, rows: Sequence[Payloads]) -> int:
        """The next blocks are here, in all groups: they can be found from now on. Returns how many
        there was room for.

        Behind a window blocks are let go as soon as they are published, so there they go one by
        one.
        """
        is_full = all(window.is_full for window in self._table.windows)
        if is_full and rows and self._put(rows):
            return len(rows)
        return next((number for number, row in enumerate(rows) if not self._put([row])), len(rows))

    def _put(self, rows: Sequence[Payloads]) -> bool:
        """All of these, or none."""
        size, groups = self._cache.block_size, self._table.num_groups
        first, last = self._num_blocks, self._num_blocks + len(rows)
        if self._cache.reserve(self._table, first * size, last * size) is None:
            return False
        own = self._table.block_ids[first * groups : last * groups]
        self._import_blocks(own, [payload for row in rows for payload in row])
        self._cache.commit(self._table, self.tokens, last * size)
        self._num_blocks = last
        return True

    def free(self) -> None:
        """Hold nothing and announce nothing any more; what has come can be found on."""
        self._cache.free(self._table)
