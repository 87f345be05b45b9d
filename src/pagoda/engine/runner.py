"""Carries out a `StepPlan`: turns it into arrays and runs the model on them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.cache import slot_mapping
from pagoda.cache.window import FULL_ATTENTION
from pagoda.engine.sampling.sampler import Draws
from pagoda.execution.batch import NONE_DRAWN, Batch, DrawnTokens, GroupPages
from pagoda.scheduling import StepPlan


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

        The next batch may ask for them (`Batch.drawn`); what was kept before is forgotten.
        """
        ...

    def require_device(self) -> None:
        """Raises what the device fails with, if it has failed for good."""
        ...


class Runner:
    """Executes plans on one device. Decides nothing."""

    runs_ahead = False
    """It takes a plan before the tokens are known that the plan before it draws; no more than one,
    since it keeps the tokens of the last step alone."""

    def __init__(self, executor: Forward) -> None:
        self._executor = executor
        self._tables = PaddedTables()

    def execute(self, plan: StepPlan, drawn_last: Sequence[int] = ()) -> torch.Tensor:
        """Logits of the plan's wanted rows, in the plan's order: float32 [num_rows, vocab_size].

        `drawn_last` are the ids of the sequences whose tokens were kept by `keep_drawn`, in order.
        """
        block_tables = self._tables.of([scheduled.block_ids for scheduled in plan.sequences])
        return self._executor.forward(prepare(plan, block_tables, drawn_last))

    def keep_drawn(self, draws: Draws) -> None:
        """The tokens that the last plan draws: kept by a runner that runs ahead."""

    def require_device(self) -> None:
        """Raises what the device fails with, if it has failed for good."""


class AheadRunner(Runner):
    """Executes plans on a device that computes on its own, so that drawn tokens stay there."""

    runs_ahead = True

    def __init__(self, executor: ForwardAhead) -> None:
        super().__init__(executor)
        self._keeper = executor

    def keep_drawn(self, draws: Draws) -> None:
        """See `Runner`."""
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
            self._tables = [None] * len(tables)
            self._padded = np.zeros(shape, dtype=np.int32)
        written, self._tables = self._tables, [None] * len(tables)  # none, should this break off
        for row, (table, before) in enumerate(zip(tables, written, strict=True)):
            if table is not before:
                self._padded[row, : len(table)] = table
                self._padded[row, len(table) :] = 0
        self._tables = list(tables)
        return self._padded


def prepare(
    plan: StepPlan, block_tables: NDArray[np.int32], drawn_last: Sequence[int] = ()
) -> Batch:
    """The arrays that the whole forward pass uses, made once per step.

    `block_tables` [num_sequences, length of the longest]: the plan's, of all groups, padded.
    `drawn_last`: ids of the sequences that drew in the step before, in the order of its tokens.
    """
    sequences = plan.sequences
    starts = np.array([s.start for s in sequences], dtype=np.int64)
    stops = np.array([s.stop for s in sequences], dtype=np.int64)
    counts = stops - starts
    num_rows = np.array([s.num_logit_rows for s in sequences], dtype=np.int64)
    ends = np.cumsum(counts)
    num_tokens = int(ends[-1]) if len(sequences) else 0

    token_ids = np.fromiter(chain.from_iterable([s.token_ids for s in sequences]), np.int64)
    drawn = NONE_DRAWN
    if len(token_ids) < num_tokens:
        drawn = _drawn_tokens(plan, ends - 1, drawn_last)
        known, token_ids = token_ids, np.zeros(num_tokens, dtype=np.int64)
        token_ids[np.delete(np.arange(num_tokens), drawn.rows)] = known
    positions = _ranges(starts, counts)
    rows = np.repeat(np.arange(len(sequences)), counts)
    query_starts = np.zeros(len(sequences) + 1, dtype=np.int32)
    query_starts[1:] = ends
    windows = _windows(plan)
    return Batch(
        token_ids=token_ids,
        positions=positions.astype(np.int32),
        query_starts=query_starts,
        context_lens=stops.astype(np.int32),
        groups=tuple(
            GroupPages(
                tables, slot_mapping(tables, rows, positions, plan.block_size), windows[:, group]
            )
            for group, tables in enumerate(_of_groups(block_tables, windows.shape[1]))
        ),
        logit_rows=_ranges(ends - num_rows, num_rows),
        copy_sources=np.array([copy.source for copy in plan.copies], dtype=np.int64),
        copy_targets=np.array([copy.target for copy in plan.copies], dtype=np.int64),
        drawn=drawn,
    )


def _of_groups(block_tables: NDArray[np.int32], num_groups: int) -> NDArray[np.int32]:
    """[num_groups, num_sequences, num_blocks] of tables that have the groups in turn."""
    if num_groups == 1:
        return block_tables[None]
    num_sequences, width = block_tables.shape
    tables = block_tables.reshape(num_sequences, width // num_groups, num_groups)
    return np.ascontiguousarray(tables.transpose(2, 0, 1))


def _windows(plan: StepPlan) -> NDArray[np.int32]:
    """[num_sequences, num_groups, 2]: window and sinks."""
    windows = plan.sequences[0].windows if plan.sequences else (FULL_ATTENTION,)
    if not all(scheduled.windows == windows for scheduled in plan.sequences):
        rows = [[(each.window, each.sinks) for each in s.windows] for s in plan.sequences]
        return np.array(rows, np.int32)
    found = np.empty((len(plan.sequences), len(windows), 2), np.int32)
    for group, each in enumerate(windows):
        found[:, group, 0], found[:, group, 1] = each.window, each.sinks
    return found


def _drawn_tokens(
    plan: StepPlan, last_rows: NDArray[np.int64], drawn_last: Sequence[int]
) -> DrawnTokens:
    """`last_rows` [num_sequences] are those of the sequences' last tokens."""
    places = {sequence_id: place for place, sequence_id in enumerate(drawn_last)}
    taking = [index for index, each in enumerate(plan.sequences) if each.takes_drawn]
    found = [places[plan.sequences[index].sequence_id] for index in taking]
    return DrawnTokens(last_rows[taking], np.array(found, dtype=np.int64))


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """starts[0], starts[0] + 1, … (counts[0] of them), starts[1], …"""
    total = int(counts.sum())
    offsets = np.cumsum(counts) - counts
    return np.arange(total, dtype=np.int64) + np.repeat(starts - offsets, counts)
