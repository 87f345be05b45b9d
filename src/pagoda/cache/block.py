"""Blocks and slots: where a sequence's tokens lie.

With `block_size` 4 and the block table [7, 2, 9], token 6 of the sequence lies in block 2 at
offset 2, which is slot 10:

    position   0  1  2  3 | 4  5  6  7 | 8  9
    block           7     |      2     |   9
    slot      28 29 30 31 | 8  9 10 11 | 36 37

Where layers form groups (`pagoda.cache.groups`) a table has a block of each group for the same
tokens, and a hole where a group has let go of its own:

    position        0 … 3 | 4 … 7 | 8  9
    full attention    7   |   2   |  9
    window of 4       ·   |   5   |  1          block_ids  7 · 2 5 9 1
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagoda.cache.hashed_tokens import HashedTokens
from pagoda.cache.origin import NOBODYS, Origin
from pagoda.cache.prefix import BlockKey, block_key, packed
from pagoda.cache.slots import num_blocks_for
from pagoda.cache.window import EVERY_TOKEN, FULL_ATTENTION, AttentionWindow
from pagoda.errors import BlockTableError

HOLE = -1
"""In a table, in place of a block that was let go."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The content of block `source` is to be copied into block `target` before anything is
    written."""

    source: int
    target: int


class BlockTable:
    """The blocks of one list of tokens, in order, with the keys that full ones are published under.

    `num_groups` block ids stand for the same tokens. "Block i" of a table means all of these.

    Only `CacheManager` changes a table; everyone else reads it.
    """

    __slots__ = (
        "_snapshot",
        "_tokens",
        "block_ids",
        "is_freed",
        "keys",
        "lets_go_at",
        "num_committed",
        "num_forked",
        "num_found",
        "num_groups",
        "num_settled",
        "num_shared",
        "origin",
        "owner",
        "position",
        "root",
        "turn",
        "windows",
    )

    def __init__(
        self,
        origin: Origin = NOBODYS,
        owner: object = None,
        windows: tuple[AttentionWindow, ...] = (FULL_ATTENTION,),
    ) -> None:
        self.origin = origin
        """Whom the sequence belongs to."""
        self.owner = owner
        """The cache that opened it."""
        self.windows = windows
        """What rows see in the layers of each group."""
        self.num_groups = len(windows)
        self.is_freed = False
        """It has let go of its blocks, and has not been acquired again."""
        self.root = origin.root()
        """Hash that the sequence's first block is chained to."""
        self.block_ids = array("i")
        """Those of block 0 in the order of groups, those of block 1, …; `HOLE` where one was let
        go. With one group the ids of the blocks, in order."""
        self.keys: list[BlockKey] = []
        """Keys of the full blocks of the tokens seen so far; tokens are only ever appended."""
        self.num_committed = 0
        """Leading blocks that are full and have been published (or whose content already was)."""
        self.num_forked = 0
        """Leading blocks shared through `fork`, with a parent or with children. Any of these tables
        may publish them first."""
        self.num_found = 0
        """Leading blocks that were in the cache when the sequence began."""
        self.num_shared = 0
        """Leading blocks that others may see: the larger of `num_committed` and `num_forked`. Later
        blocks belong to this table alone."""
        self.position = 0
        """Blocks that no row from here on sees were let go; all others are held."""
        self.num_settled = 0
        """Tokens that were computed when the table was committed last."""
        self.lets_go_at = 0
        """With so many of them the next block goes."""
        self.turn = 0
        """Tokens that were there when blocks were acquired: the end of a turn, where others may
        begin."""
        self._snapshot: NDArray[np.int32] | None = None
        self._tokens: Sequence[int] | None = None

    def keys_of(self, tokens: Sequence[int], block_size: int) -> list[BlockKey]:
        """The keys of all full blocks of `tokens`, computing those that are new.

        Raises `BlockTableError` if `tokens` are not the list that the table stands for. Of the very
        object that was given last only the last block that has a key is compared, since a list that
        grows is what engines pass; any other is compared with every key. Tokens of a trace know
        their keys.
        """
        keys = self.keys
        if keys:
            self._require_same(tokens, block_size)
        if isinstance(tokens, HashedTokens):
            keys += tokens.keys(self.root, block_size, keys)
            self._tokens = tokens
            return keys
        new: list[BlockKey] = []
        parent = keys[-1].hash if keys else self.root
        for start in range(len(keys) * block_size, len(tokens) - block_size + 1, block_size):
            new.append(block_key(parent, tokens[start : start + block_size]))
            parent = new[-1].hash
        keys += new
        self._tokens = tokens
        return keys

    def take_keys(self, table: BlockTable, tokens: Sequence[int], block_size: int) -> None:
        """Take over the keys of a table of `tokens`, or of more that begin with these, so that they
        are not computed again. Raises `BlockTableError` for one of another origin, and if this one
        has keys already.
        """
        if self.keys or table.root != self.root:
            limit = "keys go from a table to a new one of the same origin alone"
            raise BlockTableError("table", table, limit)
        self.keys = table.keys[: len(tokens) // block_size]
        self._tokens = tokens

    def require_reservable(self, start: int, stop: int, block_size: int) -> None:
        """Positions `start` to `stop - 1` may be made writable."""
        if self.is_freed:
            raise BlockTableError("table", self, "was freed; acquire it first")
        most = len(self) * block_size
        if start > 0 and most == 0:
            limit = "0, since the table holds no blocks yet; a match has to be acquired first"
            raise BlockTableError("start", start, limit)
        if not 0 <= start <= most:
            raise BlockTableError("start", start, f"0 to {most}, the slots that the table has")
        if start < self.position:
            limit = f"at least {self.position}: windows have let go of what lies before"
            raise BlockTableError("start", start, limit)
        if stop < start:
            raise BlockTableError("stop", stop, f"at least {start}, where it starts")

    def require_computable(self, num_computed: int, num_tokens: int, block_size: int) -> None:
        """The first `num_computed` of `num_tokens` tokens may be in the blocks."""
        most = min(len(self) * block_size, num_tokens)
        if not 0 <= num_computed <= most:
            limit = f"0 to {most}, the tokens that there are and that are reserved"
            raise BlockTableError("num_computed", num_computed, limit)

    def require_forkable(self, num_tokens: int, block_size: int) -> None:
        """The first `num_tokens` tokens are held, and all that the last of them sees."""
        most = len(self) * block_size
        if not 0 <= num_tokens <= most:
            raise BlockTableError("num_tokens", num_tokens, f"0 to {most}, which the table holds")
        last = max(0, num_tokens - 1)
        for window in self.windows:
            let_go = window.unseen_blocks(self.position, block_size)
            if let_go.stop > window.unseen_blocks(last, block_size).stop:
                limit = "the table has let go of what is behind a window there"
                raise BlockTableError("num_tokens", num_tokens, limit)

    def _require_same(self, tokens: Sequence[int], size: int) -> None:
        """`tokens` begin with those of all keys."""
        num_keys = len(self.keys)
        if len(tokens) < num_keys * size:
            limit = f"at least the {num_keys * size} that this table was used for; it is one list"
            raise BlockTableError("tokens", tokens, limit)
        if isinstance(tokens, HashedTokens):
            if tokens is not self._tokens and tokens.keys(self.root, size)[:num_keys] != self.keys:
                limit = "are not those that this table was used for; open another table for them"
                raise BlockTableError("tokens", tokens, limit)
            return
        for index in range(num_keys - 1 if tokens is self._tokens else 0, num_keys):
            if packed(tokens[index * size : (index + 1) * size]) != self.keys[index].tokens:
                limit = f"differ within positions {index * size} to {(index + 1) * size - 1} from "
                limit += "those that this table was used for; open another table for them"
                raise BlockTableError("tokens", tokens, limit)

    def __repr__(self) -> str:
        return f"BlockTable({list(self.block_ids)})"

    def __len__(self) -> int:
        """Blocks of each group, holes too."""
        return len(self.block_ids) // self.num_groups

    def num_held(self, group: int, block_size: int) -> int:
        """Blocks of one group that are no holes."""
        return len(self) - len(self.windows[group].unseen_blocks(self.position, block_size))

    def extend(self, block_ids: Iterable[int]) -> None:
        """Blocks for the tokens that follow."""
        self.block_ids.extend(block_ids)
        self._snapshot = None

    def replace(self, index: int, block_id: int) -> int:
        """Another block, or a hole, at an index of `block_ids`; returns what was there."""
        before = self.block_ids[index]
        self.block_ids[index] = block_id
        self._snapshot = None
        return before

    def blocks_behind(self, position: int, block_size: int) -> Iterator[tuple[int, bool]]:
        """Indices of blocks that are held, and that no row from `position` on sees.

        With each whether it is seen where the turn ends: the next one begins there, while the
        others are found again only by who shares a part of the turn.
        """
        likely = set(self.blocks_of_turn(block_size)) if position > self.position else set()
        for group, window in enumerate(self.windows):
            first = window.unseen_blocks(self.position, block_size).stop
            for number in range(first, window.unseen_blocks(position, block_size).stop):
                yield number * self.num_groups + group, (number, group) in likely

    def blocks_of_turn(self, block_size: int) -> Iterator[tuple[int, int]]:
        """Number and group of full blocks behind a window that are seen where the turn ends."""
        turn_end = min(self.turn - 1, self.turn // block_size * block_size)
        for group, window in enumerate(self.windows):
            if not window.is_full:
                first = window.unseen_blocks(turn_end, block_size).stop
                for number in range(first, min(self.turn // block_size, len(self.keys))):
                    yield number, group

    def move_to(self, position: int, block_size: int) -> None:
        """Whatever no row from `position` on sees has been let go; nothing, without a window."""
        self.lets_go_at = EVERY_TOKEN
        for window in self.windows:
            if not window.is_full:
                self.position = position
                number = window.unseen_blocks(position, block_size).stop
                at = window.position_that_lets_go(number, block_size)
                at = max(at + 1, num_blocks_for(at, block_size) * block_size)
                self.lets_go_at = min(self.lets_go_at, at)

    def fork(self, num_tokens: int, block_size: int) -> BlockTable:
        """A second table over the blocks of the first `num_tokens` tokens; both now share them."""
        child = BlockTable(self.origin, self.owner, self.windows)
        child.keys = self.keys[: num_tokens // block_size]
        child.extend(self.block_ids[: num_blocks_for(num_tokens, block_size) * self.num_groups])
        child.num_committed = min(self.num_committed, len(child.keys))
        child.num_forked = child.num_shared = len(child)
        child.num_settled, child.turn, child.num_found = num_tokens, self.turn, self.num_found
        child.move_to(self.position, block_size)
        self.num_forked = max(self.num_forked, child.num_forked)
        self.num_shared = max(self.num_shared, self.num_forked)
        return child

    def clear(self) -> None:
        """No blocks; the keys stay, as the tokens do."""
        self.block_ids = array("i")
        self.num_committed = 0
        self.num_forked = 0
        self.num_shared = 0
        self.num_settled = 0
        self.position = 0
        self._snapshot = None

    def snapshot(self) -> NDArray[np.int32]:
        """`block_ids` as they are now, read-only; one array until they change."""
        if self._snapshot is None:
            self._snapshot = np.array(self.block_ids, dtype=np.int32)
            self._snapshot.flags.writeable = False
        return self._snapshot
