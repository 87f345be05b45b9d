"""Blocks and slots: where a sequence's tokens lie.

With `block_size` 4 and the block table [7, 2, 9], token 6 of the sequence lies in block 2 at
offset 2, which is slot 10:

    position   0  1  2  3 | 4  5  6  7 | 8  9
    block           7     |      2     |   9
    slot      28 29 30 31 | 8  9 10 11 | 36 37
"""

from __future__ import annotations

from array import array
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

    __slots__ = ("block_ids", "keys", "num_committed", "root")

    def __init__(self, root: bytes) -> None:
        self.root = root
        """Hash that the sequence's first block is chained to."""
        self.block_ids = array("i")
        self.keys: list[BlockKey] = []
        """Keys of the full blocks of the tokens seen so far; tokens are only ever appended."""
        self.num_committed = 0
        """Leading blocks that are full and have been published (or whose content already was)."""

    def __len__(self) -> int:
        return len(self.block_ids)

    def snapshot(self) -> NDArray[np.int32]:
        """A copy of the block ids: [num_blocks]."""
        return np.frombuffer(self.block_ids, dtype=np.int32).copy()


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
