"""What attention needs to know about a batch, prepared once per step and used by every layer.

Sequences with one token in the step go to the decode kernel, all in one call; each sequence with
more goes through PyTorch on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.execution.batch import Batch
from pagoda.kernels.cpu.attention import split_tokens


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The sequences with one token in the step."""

    rows: NDArray[np.int64]
    """[num_sequences], each sequence's row in the run."""
    context_lens: NDArray[np.int32]
    """[num_sequences]"""
    block_tables: NDArray[np.int32]
    """[num_sequences, most blocks of any]"""
    work_sequences: NDArray[np.int64]
    """[num_pieces], ascending: the sequence of each piece of context."""
    work_splits: NDArray[np.int64]
    """[num_pieces], which piece of that sequence's context it is."""


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """One sequence with several tokens in the step."""

    start: int
    stop: int
    """Its rows in the run are start … stop - 1."""
    context_len: int
    block_ids: torch.Tensor
    """[num_blocks] int64, the blocks that hold its context."""
    masks: dict[int | None, torch.Tensor | None]
    """Sliding window (None: none) to [rows, context_len] bool, True where a row sees a token.

    None instead of a mask: plainly causal, with nothing in the cache before.
    """


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How the sequences of a batch are attended."""

    decode: DecodePlan | None
    prefills: tuple[PrefillPlan, ...]


def plan_attention(batch: Batch, block_size: int, windows: Iterable[int | None]) -> AttentionPlan:
    """Sort the sequences of `batch`; `windows` are the sliding windows that occur in the layers."""
    num_queries = np.diff(batch.query_starts)
    singles = np.flatnonzero(num_queries == 1)
    decode = _plan_decode(batch, singles, block_size) if len(singles) else None
    prefills = tuple(
        _plan_prefill(batch, int(sequence), block_size, windows)
        for sequence in np.flatnonzero(num_queries > 1)
    )
    return AttentionPlan(decode, prefills)


def _plan_decode(batch: Batch, sequences: NDArray[np.int64], block_size: int) -> DecodePlan:
    context_lens = batch.context_lens[sequences]
    num_pieces = -(-context_lens // split_tokens(block_size))
    work_sequences = np.repeat(np.arange(len(sequences)), num_pieces)
    first_piece = np.cumsum(num_pieces) - num_pieces
    return DecodePlan(
        rows=batch.query_starts[sequences].astype(np.int64),
        context_lens=context_lens,
        block_tables=np.ascontiguousarray(batch.block_tables[sequences]),
        work_sequences=work_sequences,
        work_splits=np.arange(len(work_sequences)) - first_piece[work_sequences],
    )


def _plan_prefill(
    batch: Batch, sequence: int, block_size: int, windows: Iterable[int | None]
) -> PrefillPlan:
    start, stop = (int(row) for row in batch.query_starts[sequence : sequence + 2])
    context_len = int(batch.context_lens[sequence])
    num_blocks = -(-context_len // block_size)
    block_ids = torch.from_numpy(batch.block_tables[sequence, :num_blocks].astype(np.int64))
    positions = torch.arange(context_len - (stop - start), context_len)
    masks = {window: _mask(positions, context_len, window) for window in windows}
    return PrefillPlan(start, stop, context_len, block_ids, masks)


def _mask(positions: torch.Tensor, context_len: int, window: int | None) -> torch.Tensor | None:
    alone = len(positions) == context_len
    if alone and (window is None or window >= context_len):
        return None
    tokens = torch.arange(context_len)
    seen = tokens <= positions[:, None]
    if window is not None:
        seen &= tokens > positions[:, None] - window
    return seen
