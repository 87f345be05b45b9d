"""Where tokens lie: blocks of `block_size` slots each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
