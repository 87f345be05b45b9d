"""One session while it is copied or brought in: its tokens, their keys, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.engine.sessions.blocks import Piece, SessionBlocks
from pagoda.engine.sessions.session import Session
from pagoda.tiers.names import BlockName
from pagoda.tiers.segment import Row
from pagoda.tiers.shelf import Payloads


class Course:
    """`copy`, `put` and `num_cached` are for the engine's thread, the rest for whoever made it."""

    def __init__(self, blocks: SessionBlocks, session: Session) -> None:
        self.session = session
        self._blocks = blocks
        self._tokens = session.token_ids()
        self._looking, self._filling = blocks.table(session), blocks.table(session)
        self._keys = self._looking.keys_of(self._tokens, blocks.block_size)
        groups = range(blocks.num_groups)
        self.names: Sequence[Row] = [
            [BlockName(key.hash, group) for group in groups] for key in self._keys
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

    def put(self, start: int, rows: Sequence[Payloads]) -> int:
        """Publish rows; returns how many leading ones are in the cache now."""
        return self._blocks.put(self._filling, self._tokens, start, rows)

    def num_cached(self) -> int:
        """Leading rows that are in the cache."""
        return self._blocks.num_cached(self._looking, self._tokens)
