"""One session while it is copied or brought in: its tokens, their keys, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.engine.sessions.blocks import Piece, SessionBlocks
from pagoda.engine.sessions.session import Session
from pagoda.engine.transfers.incoming import IncomingPrefix
from pagoda.tiers.names import BlockName
from pagoda.tiers.segment import Row
from pagoda.tiers.shelf import Payloads


class Course:
    """What uses the blocks is for the engine's thread, the rest for whoever made it."""

    def __init__(self, blocks: SessionBlocks, session: Session) -> None:
        self.session = session
        self._blocks = blocks
        self._tokens = session.token_ids()
        self._table = blocks.table(session)
        """Which holds nothing."""
        self._keys = self._table.keys_of(self._tokens, blocks.block_size)
        self._prefix: IncomingPrefix | None = None
        """What has been brought in, once that has begun."""
        groups = range(blocks.num_groups)
        self.names: Sequence[Row] = [
            [BlockName(key.hash, group, number) for group in groups]
            for number, key in enumerate(self._keys)
        ]
        """Of its full blocks."""
        self.most = blocks.piece_rows
        """Rows of a piece."""
        self.reason: str | None = None
        """Why it could not be brought in whole; None: it could, or nobody knows yet."""

    @property
    def pieces(self) -> range:
        """The first rows of all pieces."""
        return range(0, len(self.names), self.most)

    def num_tokens_of(self, num_rows: int) -> int:
        return num_rows * self._blocks.block_size

    def copy(self, start: int) -> Piece:
        """Begin to copy the piece that begins there."""
        return self._blocks.copy(self._keys[start : start + self.most])

    def begin(self) -> int:
        """Begin to bring it in; returns how many leading rows are cached, and held until `end`."""
        self._prefix = self._blocks.begin(self.session, self._tokens, self._table)
        return self._prefix.num_blocks

    def put(self, start: int, rows: Sequence[Payloads]) -> int:
        """Publish rows; returns how many leading ones are in the cache, and held, now."""
        assert self._prefix is not None
        return self._blocks.put(self._prefix, start, rows)

    def end(self) -> None:
        """No more is brought in."""
        if self._prefix is not None:
            self._blocks.end(self._prefix)

    def num_cached(self) -> int:
        """Leading rows that are in the cache."""
        return self._blocks.num_cached(self._table, self._tokens)
