"""Carries out a `StepPlan`: turns it into arrays and runs the model on them."""

from __future__ import annotations

from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.cache import slot_mapping
from pagoda.execution.batch import Batch
from pagoda.scheduling import StepPlan


class Forward(Protocol):
    """Runs a model for a batch."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of `batch.logit_rows`: float32 [num_logit_rows, vocab_size]."""
        ...


class Runner:
    """Executes plans on one device. Decides nothing."""

    def __init__(self, executor: Forward) -> None:
        self._executor = executor

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Logits of the plan's wanted rows, in the plan's order: float32 [num_rows, vocab_size]."""
        return self._executor.forward(prepare(plan))


def prepare(plan: StepPlan) -> Batch:
    """The arrays that the whole forward pass uses, made once per step."""
    sequences = plan.sequences
    counts = np.fromiter((len(s.token_ids) for s in sequences), np.int64, len(sequences))
    starts = np.fromiter((s.start for s in sequences), np.int64, len(sequences))
    num_rows = np.fromiter((s.num_logit_rows for s in sequences), np.int64, len(sequences))
    ends = np.cumsum(counts)
    first_rows = ends - counts
    num_tokens = int(ends[-1]) if len(sequences) else 0

    token_ids = np.fromiter(
        chain.from_iterable(s.token_ids for s in sequences), np.int64, num_tokens
    )
    positions = _ranges(starts, counts)
    block_tables = _pad([s.block_ids for s in sequences])
    rows = np.repeat(np.arange(len(sequences)), counts)
    return Batch(
        token_ids=token_ids,
        positions=positions.astype(np.int32),
        slot_mapping=slot_mapping(block_tables, rows, positions, plan.block_size),
        query_starts=np.append(first_rows, num_tokens).astype(np.int32),
        context_lens=(starts + counts).astype(np.int32),
        block_tables=block_tables,
        logit_rows=_ranges(ends - num_rows, num_rows),
        copy_sources=np.array([copy.source for copy in plan.copies], dtype=np.int64),
        copy_targets=np.array([copy.target for copy in plan.copies], dtype=np.int64),
    )


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """starts[0], starts[0] + 1, … (counts[0] of them), starts[1], …"""
    total = int(counts.sum())
    offsets = np.cumsum(counts) - counts
    return np.arange(total, dtype=np.int64) + np.repeat(starts - offsets, counts)


def _pad(block_tables: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """[num_sequences, length of the longest], zeros at the end of shorter ones."""
    width = max((len(table) for table in block_tables), default=0)
    padded = np.zeros((len(block_tables), width), dtype=np.int32)
    for row, table in zip(padded, block_tables, strict=True):
        row[: len(table)] = table
    return padded
