"""Blocks and slots: where a sequence's tokens lie.

With `block_size` 4 and the block table [7, 2, 9], token 6 of the sequence lies in block 2 at
offset 2, which is slot 10:

    position   0  1  2  3 | 4  5  6  7 | 8  9
    block           7     |      2     |   9
    slot      28 29 30 31 | 8  9 10 11 | 36 37
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagoda.cache.prefix import BlockKey, block_key, packed
from pagoda.errors import BlockTableError


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The content of block `source` is to be copied into block `target` before anything is
    written."""

    source: int
    target: int


class BlockTable:
    """The blocks of one list of tokens, in order, with the keys that full ones are published under.

    Only `CacheManager` changes a table; everyone else reads it.
    """

    __slots__ = (
        "_snapshot",
        "_tokens",
        "block_ids",
        "is_freed",
        "keys",
        "num_committed",
        "num_forked",
        "num_shared",
        "owner",
        "root",
    )

    def __init__(self, root: bytes, owner: object = None) -> None:
        self.owner = owner
        """The cache that opened it."""
        self.is_freed = False
        """It has let go of its blocks, and has not been acquired again."""
        self.root = root
        """Hash that the sequence's first block is chained to."""
        self.block_ids = array("i")
        self.keys: list[BlockKey] = []
        """Keys of the full blocks of the tokens seen so far; tokens are only ever appended."""
        self.num_committed = 0
        """Leading blocks that are full and have been published (or whose content already was)."""
        self.num_forked = 0
        """Leading blocks shared through `fork`, with a parent or with children. Any of these tables
        may publish them first."""
        self.num_shared = 0
        """Leading blocks that others may see: the larger of `num_committed` and `num_forked`. Later
        blocks belong to this table alone."""
        self._snapshot: NDArray[np.int32] | None = None
        self._tokens: Sequence[int] | None = None

    def keys_of(self, tokens: Sequence[int], block_size: int) -> list[BlockKey]:
        """The keys of all full blocks of `tokens`, computing those that are new.

        Raises `BlockTableError` if `tokens` are not the list that the table stands for. Of the very
        object that was given last only the last block that has a key is compared, since a list that
        grows is what engines pass; any other is compared with every key.
        """
        keys = self.keys
        if keys:
            self._require_same(tokens, block_size)
        new: list[BlockKey] = []
        parent = keys[-1].hash if keys else self.root
        for start in range(len(keys) * block_size, len(tokens) - block_size + 1, block_size):
            new.append(block_key(parent, tokens[start : start + block_size]))
            parent = new[-1].hash
        keys += new
        self._tokens = tokens
        return keys

    def require_reservable(self, start: int, stop: int, block_size: int) -> None:
        """Positions `start` to `stop - 1` may be made writable."""
        if self.is_freed:
            raise BlockTableError("table", self, "was freed; acquire it first")
        most = len(self.block_ids) * block_size
        if start > 0 and most == 0:
            limit = "0, since the table holds no blocks yet; a match has to be acquired first"
            raise BlockTableError("start", start, limit)
        if not 0 <= start <= most:
            raise BlockTableError("start", start, f"0 to {most}, the slots that the table has")
        if stop < start:
            raise BlockTableError("stop", stop, f"at least {start}, where it starts")

    def require_computable(self, num_computed: int, num_tokens: int, block_size: int) -> None:
        """The first `num_computed` of `num_tokens` tokens may be in the blocks."""
        most = min(len(self.block_ids) * block_size, num_tokens)
        if not 0 <= num_computed <= most:
            limit = f"0 to {most}, the tokens that there are and that are reserved"
            raise BlockTableError("num_computed", num_computed, limit)

    def _require_same(self, tokens: Sequence[int], size: int) -> None:
        """`tokens` begin with those of all keys."""
        num_keys = len(self.keys)
        if len(tokens) < num_keys * size:
            limit = f"at least the {num_keys * size} that this table was used for; it is one list"
            raise BlockTableError("tokens", tokens, limit)
        for index in range(num_keys - 1 if tokens is self._tokens else 0, num_keys):
            if packed(tokens[index * size : (index + 1) * size]) != self.keys[index].tokens:
                limit = f"differ within positions {index * size} to {(index + 1) * size - 1} from "
                limit += "those that this table was used for; open another table for them"
                raise BlockTableError("tokens", tokens, limit)

    def __repr__(self) -> str:
        return f"BlockTable({list(self.block_ids)})"

    def __len__(self) -> int:
        return len(self.block_ids)

    def extend(self, block_ids: Iterable[int]) -> None:
        """Blocks for the tokens that follow."""
        self.block_ids.extend(block_ids)
        self._snapshot = None

    def replace(self, index: int, block_id: int) -> None:
        """Another block for the tokens of block `index`."""
        self.block_ids[index] = block_id
        self._snapshot = None

    def clear(self) -> None:
        """No blocks; the keys stay, as the tokens do."""
        self.block_ids = array("i")
        self.num_committed = 0
        self.num_forked = 0
        self.num_shared = 0
        self._snapshot = None

    def snapshot(self) -> NDArray[np.int32]:
        """The block ids as they are now: [num_blocks], read-only; one array until they change."""
        if self._snapshot is None:
            self._snapshot = np.array(self.block_ids, dtype=np.int32)
            self._snapshot.flags.writeable = False
        return self._snapshot


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` tokens occupy."""
    return -(-num_tokens // block_size)


def slot_mapping(
    block_tables: NDArray[np.int32],
    rows: NDArray[np.int64],
    positions: NDArray[np.int64],
    block_size: int,
) -> NDArray[np.int64]:
    """The slot of each token: [num_tokens].

    Token i is at `positions[i]` of the sequence whose block table is row `rows[i]` of
    `block_tables` [num_sequences, num_blocks].

        slot = block_tables[row, position // block_size] * block_size + position % block_size
    """
    blocks, offsets = np.divmod(positions, block_size)
    return block_tables[rows, blocks].astype(np.int64) * block_size + offsets
