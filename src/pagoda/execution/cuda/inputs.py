"""What the launches of a step read, on the device: where tokens go, and who attends to what.

Rows with one token in the step go to decode attention, also where others of the batch have more;
those go to prefill attention in tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.execution.batch import Batch
from pagoda.execution.cuda.transfer import Integers, Transfer, bytes_of
from pagoda.kernels.cuda.prefill_attention import prefill_tiles


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The whole numbers of T tokens of S sequences."""

    token_ids: torch.Tensor
    """[T] int32"""
    positions: torch.Tensor
    """[T] int32"""
    slot_mapping: torch.Tensor
    """[T] int64; -1: nothing is stored"""
    query_starts: torch.Tensor
    """[S + 1] int32"""
    context_lens: torch.Tensor
    """[S] int32; 0: a row that pads"""
    block_tables: torch.Tensor
    """[S, blocks] int32"""
    decode_rows: torch.Tensor
    """[n] int32, rows of sequences with one token"""
    decode_sequences: torch.Tensor
    """[n] int32, those sequences"""
    tiles: Mapping[int, torch.Tensor]
    """Group size → [tiles, 2] int32 of all other sequences; empty if there are none."""
    logit_rows: torch.Tensor | None
    """[L] int32; None: all, in order"""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_logit_rows(self) -> int:
        return self.num_tokens if self.logit_rows is None else len(self.logit_rows)


class BatchInputs:
    """Brings batches of any kind to the device. Its memory grows with the largest so far."""

    def __init__(self, group_sizes: Sequence[int], device: torch.device) -> None:
        self._group_sizes = tuple(dict.fromkeys(group_sizes))
        self._device = device
        self._transfer = Transfer(0, device)

    def of(self, batch: Batch) -> StepInputs:
        """The batch on the device, good until the next call."""
        counts = np.diff(batch.query_starts)
        decoding = np.flatnonzero(counts == 1)
        arrays: list[Integers] = [
            batch.token_ids.astype(np.int32),
            batch.positions,
            batch.slot_mapping,
            batch.query_starts,
            batch.context_lens,
            batch.block_tables,
            batch.query_starts[decoding],
            decoding.astype(np.int32),
            batch.logit_rows.astype(np.int32),
        ]
        tiles = self._tiles(batch.query_starts, np.flatnonzero(counts > 1))
        arrays += tiles.values()
        size = bytes_of(arrays)
        if size > self._transfer.size_bytes:
            self._transfer = Transfer(2 * size, self._device)
        sent = [self._transfer.at(place) for place in self._transfer.send(arrays)]
        *plain, logit_rows = sent[: len(arrays) - len(tiles)]
        on_device = dict(zip(tiles, sent[len(plain) + 1 :], strict=True))
        return StepInputs(*plain, on_device, logit_rows)

    def _tiles(
        self, query_starts: NDArray[np.int32], wanted: NDArray[np.int64]
    ) -> dict[int, NDArray[np.int32]]:
        if not len(wanted):
            return {}
        return {
            size: prefill_tiles(query_starts, wanted, size).astype(np.int32, copy=False)
            for size in self._group_sizes
        }
