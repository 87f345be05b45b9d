"""The arrays of one step: all scheduled sequences' tokens in one flat run, prepared once per step.

For three sequences with 1, 4 and 1 tokens scheduled:

    token_ids       a | b c d e | f           num_tokens = 6
    query_starts    0   1         5   6
    context_lens    tokens in each sequence's cache once this step has written, own tokens included
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Batch:
    """What an executor needs for one forward pass.

    Nothing in it is changed until the next one is built, which may use the same memory.
    """

    token_ids: NDArray[np.int64]
    """[num_tokens]. A negative one is a token that the step before has drawn, which only the device
    knows: -1 is the first of them, -2 the second, …"""
    positions: NDArray[np.int32]
    """[num_tokens], of each token in its sequence."""
    slot_mapping: NDArray[np.int64]
    """[num_tokens], the slot each token's K and V are written to."""
    query_starts: NDArray[np.int32]
    """[num_sequences + 1], where each sequence's tokens start in the run."""
    context_lens: NDArray[np.int32]
    """[num_sequences], in tokens."""
    block_tables: NDArray[np.int32]
    """[num_sequences, most blocks of any sequence]; unused entries are 0."""
    logit_rows: NDArray[np.int64]
    """[num_logit_rows], ascending: rows of the run whose logits are wanted."""
    copy_sources: NDArray[np.int64]
    """[num_copies], block ids whose content is read before anything is written."""
    copy_targets: NDArray[np.int64]
    """[num_copies], block ids they are copied to; all distinct."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)
