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

ImportBlock = Callable[[int, FrameBytes], None]
"""Overwrites the content of a block."""


class IncomingPrefix:
    """Whole blocks of one sequence's tokens, from the first that the cache does not have."""

    def __init__(
        self,
        cache: CacheManager,
        import_block: ImportBlock,
        table: BlockTable,
        tokens: Sequence[int],
    ) -> None:
        """`table`: new, of the sequence's tenant, salt and retention; for `tokens` alone, of which
        only whole blocks are looked at."""
        self._cache = cache
        self._import_block = import_block
        self._table = table
        self.tokens = tokens[: len(tokens) // cache.block_size * cache.block_size]
        self._num_blocks = 0

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

    def rows(self) -> list[Row]:
        """The names of the blocks that are to come, in order."""
        groups = range(self._table.num_groups)
        keys = self._table.keys[self._num_blocks :]
        return [[BlockName(key.hash, group) for group in groups] for key in keys]

    def put(self, payloads: Payloads) -> bool:
        """The next block is here, in all groups: it can be found from now on. False: there is no
        room for it."""
        size = self._cache.block_size
        start, stop = self._num_blocks * size, (self._num_blocks + 1) * size
        if self._cache.reserve(self._table, start, stop) is None:
            return False
        groups = self._table.num_groups
        own = self._table.block_ids[self._num_blocks * groups :][:groups]
        for block_id, payload in zip(own, payloads, strict=True):
            self._import_block(block_id, payload)
        self._cache.commit(self._table, self.tokens, stop)
        self._num_blocks += 1
        return True

    def free(self) -> None:
        """Hold nothing and announce nothing any more; what has come can be found on."""
        self._cache.free(self._table)
