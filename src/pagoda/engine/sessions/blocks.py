"""The blocks of sessions in the pool: copied out, and brought in.

No reference is held between two calls: sessions wait for tiers and for clients, and requests never
wait for sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache import BlockTable, CacheManager
from pagoda.cache.prefix import BlockKey
from pagoda.engine.sessions.errors import SessionFailedError
from pagoda.engine.sessions.session import Session
from pagoda.engine.transfers.incoming import ImportBlocks, IncomingPrefix
from pagoda.engine.transfers.stores import BeginExport
from pagoda.storage.block_storage import BlockCopies
from pagoda.tiers.shelf import Payloads
from pagoda.tiers.tier import FrameBytes

logger = logging.getLogger("pagoda")

PIECE_BYTES = 16 * 2**20
"""Copied between two steps, at most, but for a single row."""

CopiedRow = Sequence[FrameBytes | None]
"""A block in all groups; None where it is not in the pool."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that are being copied out of the pool."""

    copies: BlockCopies | None
    """None: none of them is there."""
    block_ids: Sequence[Sequence[int | None]]
    """Of each row those of its groups; None where it is not in the pool."""
    has_failed: bool = False
    """The copy could not be begun."""

    def wait(self) -> list[CopiedRow]:
        """The rows, once they are copied. Any thread may wait. Raises `SessionFailedError`."""
        if self.has_failed:
            raise SessionFailedError("its blocks could not be copied")
        copied = iter(() if self.copies is None else self.copies.wait())
        return [
            [None if block_id is None else next(copied).data for block_id in row]
            for row in self.block_ids
        ]


class SessionBlocks:
    """The engine's thread alone calls it, but for `table` and what is constant."""

    def __init__(
        self,
        cache: CacheManager,
        begin_export: BeginExport,
        import_blocks: ImportBlocks,
        block_bytes: int,
    ) -> None:
        """`block_bytes`: of a block of one group."""
        self._cache = cache
        self._begin_export = begin_export
        self._import_blocks = import_blocks
        self.block_bytes = block_bytes
        self.block_size = cache.block_size
        self.num_groups = len(cache.open().windows)
        row_bytes = block_bytes * self.num_groups
        self.piece_rows = max(1, PIECE_BYTES // row_bytes)
        """Rows that are copied between two steps, at most."""

    @property
    def are_found(self) -> bool:
        """Prefix caching is on."""
        return self._cache.enable_prefix_caching

    def table(self, session: Session) -> BlockTable:
        """One of its own, which holds nothing."""
        return self._cache.open(
            tenant=session.tenant, cache_salt=session.cache_salt, retention=session.window
        )

    def num_cached(self, table: BlockTable, tokens: Sequence[int]) -> int:
        """Leading full blocks of a session's tokens that would be found now."""
        match = self._cache.match(table, tokens)
        return len(match.block_ids) // self.num_groups

    def copy(self, keys: Sequence[BlockKey]) -> Piece:
        """Begin to copy the blocks that are published under these keys. A failure, as where memory
        is short, changes nothing, so that it is told to whoever waits for the copy alone."""
        groups = range(self.num_groups)
        block_ids = [[self._cache.published(key, group) for group in groups] for key in keys]
        there = [block_id for row in block_ids for block_id in row if block_id is not None]
        try:
            return Piece(self._begin_export(there) if there else None, block_ids)
        except Exception:
            logger.exception("blocks of a session could not be copied")
            return Piece(None, block_ids, has_failed=True)

    def put(
        self, table: BlockTable, tokens: Sequence[int], start: int, rows: Sequence[Payloads]
    ) -> int:
        """Publish the blocks from number `start` on; returns how many leading ones are there now.

        Less than were to be, where the pool is short, which makes nobody give way, where blocks
        before them are gone, and where somebody is just computing them. `table` is for this alone,
        with `start` growing.
        """
        if not self.are_found:
            return 0
        tokens = tokens[: (start + len(rows)) * self.block_size]
        prefix = IncomingPrefix(self._cache, self._import_blocks, table, tokens)
        if not prefix.claim():
            return self.num_cached(table, tokens)
        try:
            if prefix.num_blocks >= start:
                prefix.put(rows[prefix.num_blocks - start :])
            return prefix.num_blocks
        finally:
            prefix.free()
