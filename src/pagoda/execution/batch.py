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

from pagoda.cache.window import EVERY_TOKEN, FULL_ATTENTION


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """Tokens of a batch that the step before has drawn and only the device knows."""

    rows: NDArray[np.int64]
    """[num_drawn], of the run, ascending."""
    places: NDArray[np.int64]
    """[num_drawn], of each among the tokens that the step before has drawn."""


NONE_DRAWN = DrawnTokens(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class GroupPages:
    """Where one group of layers reads and writes (`pagoda.cache.groups`)."""

    block_tables: NDArray[np.int32]
    """[num_sequences, most blocks of any sequence]; holes and unused entries are never read."""
    slot_mapping: NDArray[np.int64]
    """[num_tokens], the slot each token's K and V are written to; on a GPU -1, as in other engines:
    none."""
    windows: NDArray[np.int32]
    """[num_sequences, 2], window and sinks of each: see `AttentionWindow`."""

    @classmethod
    def seeing_all(
        cls, block_tables: NDArray[np.int32], slot_mapping: NDArray[np.int64]
    ) -> GroupPages:
        """Full attention."""
        windows = np.empty((len(block_tables), 2), np.int32)
        windows[:] = FULL_ATTENTION.window, FULL_ATTENTION.sinks
        return cls(block_tables, slot_mapping, windows)


@dataclass(frozen=True, slots=True)
class Batch:
    """What an executor needs for one forward pass.

    Nothing in it is changed until the next one is built, which may use the same memory.
    """

    token_ids: NDArray[np.int64]
    """[num_tokens]; 0 in the rows of `drawn`."""
    positions: NDArray[np.int32]
    """[num_tokens], of each token in its sequence."""
    query_starts: NDArray[np.int32]
    """[num_sequences + 1], where each sequence's tokens start in the run."""
    context_lens: NDArray[np.int32]
    """[num_sequences], in tokens."""
    groups: tuple[GroupPages, ...]
    """Of the cache's groups of layers, in order."""
    logit_rows: NDArray[np.int64]
    """[num_logit_rows], ascending: rows of the run whose logits are wanted."""
    copy_sources: NDArray[np.int64]
    """[num_copies], block ids whose content is read before anything is written."""
    copy_targets: NDArray[np.int64]
    """[num_copies], block ids they are copied to; all distinct."""
    drawn: DrawnTokens = NONE_DRAWN

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def sink_positions(self, group: int) -> NDArray[np.int32]:
        """[num_tokens], where each row stands for its sinks: as if its window followed right behind
        them; its own place in sequences without any."""
        window, sinks = self.groups[group].windows.astype(np.int64).T
        furthest = np.where(sinks > 0, window + sinks - 1, EVERY_TOKEN)
        furthest = np.repeat(furthest, np.diff(self.query_starts))
        return np.minimum(self.positions, furthest).astype(np.int32)
