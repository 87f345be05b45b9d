"""Blocks and slots: where a sequence's tokens lie.

With `block_size` 4 and the block table [7, 2, 9], token 6 of the sequence lies in block 2 at
offset 2, which is slot 10:

    position   0  1  2  3 | 4  5  6  7 | 8  9
    block           7     |      2     |   9
    slot      28 29 30 31 | 8  9 10 11 | 36 37
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagoda.cache.prefix import BlockKey


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The content of block `source` is to be copied into block `target` before anything is
    written."""

    source: int
    target: int


class BlockTable:
    """The blocks of one sequence, in order, with the keys under which full ones are published.

    Only `CacheManager` changes a table; everyone else reads it.
    """

    __slots__ = ("_snapshot", "block_ids", "keys", "num_committed", "num_shared", "root")

    def __init__(self, root: bytes) -> None:
        self.root = root
        """Hash that the sequence's first block is chained to."""
        self.block_ids = array("i")
        self.keys: list[BlockKey] = []
        """Keys of the full blocks of the tokens seen so far; tokens are only ever appended."""
        self.num_committed = 0
        """Leading blocks that are full and have been published (or whose content already was)."""
        self.num_shared = 0
        """Leading blocks that others may see; whatever is behind them is the table's alone."""
        self._snapshot: NDArray[np.int32] | None = None

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
