"""Carries out a `StepPlan`: turns it into arrays and runs the model on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.cache import slot_mapping
from pagoda.engine.sampling.sampler import Draws
from pagoda.execution.batch import Batch
from pagoda.scheduling import PENDING, StepPlan


class Forward(Protocol):
    """Runs a model for a batch."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of `batch.logit_rows`: float32 [num_logit_rows, vocab_size].

        The next call may write to the same memory.
        """
        ...


class ForwardAhead(Forward, Protocol):
    """Runs a model for batches in which tokens may be named by where the device has them."""

    def keep_drawn(self, token_ids: torch.Tensor) -> None:
        """What the last step has drawn, [num_drawn] int64 where the logits were.

        The next batch may name them by their places.
        """
        ...

    def require_device(self) -> None:
        """Raises what the device fails with, if it has failed for good."""
        ...


class Runner:
    """Executes plans on one device. Decides nothing."""

    num_steps_ahead = 0
    """Plans that it takes before the tokens are known that the plan before them drew."""

    def __init__(self, executor: Forward) -> None:
        self._executor = executor
        self._tables = PaddedTables()
        self._places: dict[int, int] = {}
        """Of each sequence's token among those that were drawn last."""

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Logits of the plan's wanted rows, in the plan's order: float32 [num_rows, vocab_size]."""
        block_tables = self._tables.of([scheduled.block_ids for scheduled in plan.sequences])
        return self._executor.forward(prepare(plan, block_tables, self._places))

    def keep_drawn(self, sequence_ids: Sequence[int], draws: Draws) -> None:
        """The tokens of these sequences, drawn after the last plan, in this order."""

    def require_device(self) -> None:
        """Raises what the device fails with, if it has failed for good."""


class AheadRunner(Runner):
    """Executes plans on a device that computes on its own, so that pending tokens stay there."""

    num_steps_ahead = 1

    def __init__(self, executor: ForwardAhead) -> None:
        super().__init__(executor)
        self._keeper = executor

    def keep_drawn(self, sequence_ids: Sequence[int], draws: Draws) -> None:
        """Where these sequences' pending tokens are found in the next plan's step."""
        self._places = {sequence_id: place for place, sequence_id in enumerate(sequence_ids)}
        self._keeper.keep_drawn(draws.token_ids)

    def require_device(self) -> None:
        """See `Runner`."""
        self._keeper.require_device()


class PaddedTables:
    """Block tables as the rows of one array, which goes from step to step.

    While sequences decode, a table grows once in `block_size` steps; only the rows of those that
    have changed are written.
    """

    def __init__(self) -> None:
        self._padded = np.zeros((0, 0), dtype=np.int32)
        self._tables: list[NDArray[np.int32] | None] = []

    def of(self, tables: list[NDArray[np.int32]]) -> NDArray[np.int32]:
        """[num_tables, length of the longest], zeros at the end of shorter ones.

        Good until the next call, which may write into the same array. A table that is the very
        array it was in the call before is taken to be unchanged.
        """
        shape = (len(tables), max(map(len, tables), default=0))
        if self._padded.shape != shape:
            self._padded = np.zeros(shape, dtype=np.int32)
            self._tables = [None] * len(tables)
        for row, (table, before) in enumerate(zip(tables, self._tables, strict=True)):
            if table is not before:
                self._padded[row, : len(table)] = table
                self._padded[row, len(table) :] = 0
        self._tables = list(tables)
        return self._padded


def prepare(plan: StepPlan, block_tables: NDArray[np.int32], places: Mapping[int, int]) -> Batch:
    """The arrays that the whole forward pass uses, made once per step.

    `block_tables` [num_sequences, length of the longest]: the plan's, padded with zeros. `places`
    tell, by sequence ids, which of the tokens that were drawn last the pending ones are.
    """
    sequences = plan.sequences
    counts = np.array([len(s.token_ids) for s in sequences], dtype=np.int64)
    starts = np.array([s.start for s in sequences], dtype=np.int64)
    num_rows = np.array([s.num_logit_rows for s in sequences], dtype=np.int64)
    ends = np.cumsum(counts)
    num_tokens = int(ends[-1]) if len(sequences) else 0

    token_ids = np.fromiter(
        chain.from_iterable([s.token_ids for s in sequences]), np.int64, num_tokens
    )
    last = ends - 1
    for index in np.flatnonzero(token_ids[last] == PENDING).tolist():
        token_ids[last[index]] = -1 - places[sequences[index].sequence_id]
    positions = _ranges(starts, counts)
    rows = np.repeat(np.arange(len(sequences)), counts)
    query_starts = np.zeros(len(sequences) + 1, dtype=np.int32)
    query_starts[1:] = ends
    return Batch(
        token_ids=token_ids,
        positions=positions.astype(np.int32),
        slot_mapping=slot_mapping(block_tables, rows, positions, plan.block_size),
        query_starts=query_starts,
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
