"""The blocks of sessions in the pool: copied out, and brought in.

Of what is copied no reference is held between two calls. What is brought in holds what has come,
and gives way where that is needed (`ArrivingSessions`): requests never wait for sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache import BlockTable, CacheManager
from pagoda.cache.prefix import BlockKey
from pagoda.engine.sessions.arriving import ArrivingSessions
from pagoda.engine.sessions.errors import SessionFailedError
from pagoda.engine.sessions.session import Session
from pagoda.engine.transfers.incoming import ImportBlocks, IncomingPrefix
from pagoda.engine.transfers.stores import BeginExport
from pagoda.storage.block_copies import BlockCopies
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
        arriving: ArrivingSessions,
        block_bytes: int,
    ) -> None:
        """`arriving`: those that are being brought in. `block_bytes`: of a block of one group."""
        self._cache = cache
        self._begin_export = begin_export
        self._import_blocks = import_blocks
        self._arriving = arriving
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

    def begin(self, session: Session, tokens: Sequence[int], known: BlockTable) -> IncomingPrefix:
        """Begin to bring a session in, and hold what of it is cached. `known`: a table of it, whose
        keys are."""
        table = self.table(session)
        prefix = IncomingPrefix(self._cache, self._import_blocks, table, tokens, known)
        self._arriving.begin_to_hold(prefix)
        return prefix

    def put(self, prefix: IncomingPrefix, start: int, rows: Sequence[Payloads]) -> int:
        """Publish the blocks from number `start` on; returns how many leading ones are held now.

        Less than were to be, where the pool is short, which makes nobody give way, and where
        somebody needed the blocks before them.
        """
        if prefix not in self._arriving:
            return 0
        if prefix.num_blocks >= start:
            prefix.put(rows[prefix.num_blocks - start :])
        return prefix.num_blocks

    def end(self, prefix: IncomingPrefix) -> None:
        """Hold nothing of it any more; what has come can be found on."""
        self._arriving.free(prefix)

    def abandon(self) -> None:
        """Nothing more is wanted of sessions that are being brought in."""
        self._arriving.abandon()
