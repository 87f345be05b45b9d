"""What the launches of a step read, on the device: where tokens go, and who attends to what.

Rows with one token in the step go to decode attention, also where others of the batch have more;
those go to prefill attention by a tiling for each kind of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.execution.batch import Batch
from pagoda.execution.gpu.upload import InputUpload, Integers, bytes_of
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.prefill_tiling import AttentionKind, PrefillTiling, tile_prefill
from pagoda.sizing.alignment import ALIGNMENT


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The whole numbers of T tokens of S sequences."""

    token_ids: torch.Tensor
    """[T] int32; 0 where a drawn token is taken"""
    takes_drawn: torch.Tensor
    """[T] int32; 1: the token is one that the step before has drawn; 0: it is of `token_ids`"""
    drawn_places: torch.Tensor
    """[T] int32, where it is among those; 0 where none is taken"""
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
    prefill: Mapping[AttentionKind, PrefillTiling[torch.Tensor]]
    """For all other sequences; empty if there are none."""
    logit_rows: torch.Tensor | None
    """[L] int32; None: all, in order"""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


_NUM_ARRAYS = 11
"""Arrays that every batch sends; tilings have two more each."""
_ROW_BYTES, _SEQUENCE_BYTES = 3 * 4 + 4 + 8 + 4, 4 + 4 + 4 + 4
"""Bytes of a token: its id or where it was drawn, position, slot and row of logits; and of a
sequence without its table: its start, its context, and its row and number if it decodes."""
_LINE = 16
"""Compiled kernels tell lines of so many numbers from others: all tables are of one kind."""


class BatchInputs:
    """Brings batches of any kind to the device.

    Memory is kept for `max_num_tokens` of `max_num_seqs` sequences with tables of `max_blocks`; a
    batch that takes more makes it grow.
    """

    def __init__(
        self,
        kinds: Sequence[AttentionKind],
        device: torch.device,
        *,
        max_num_tokens: int,
        max_num_seqs: int,
        max_blocks: int,
    ) -> None:
        self._kinds = tuple(dict.fromkeys(kinds))
        self._device = device
        sequence_bytes = _SEQUENCE_BYTES + 4 * whole_lines(max_blocks)
        size_bytes = max_num_tokens * _ROW_BYTES + max_num_seqs * sequence_bytes
        size_bytes += sum(
            kind.most_tiling_bytes(max_num_tokens, max_num_seqs) for kind in self._kinds
        )
        num_arrays = _NUM_ARRAYS + 2 * len(self._kinds)
        self._upload = InputUpload(size_bytes + num_arrays * ALIGNMENT, device)

    def of(self, batch: Batch) -> StepInputs:
        """The batch on the device, good until the next call."""
        counts = np.diff(batch.query_starts)
        decoding = np.flatnonzero(counts == 1)
        arrays: list[Integers] = [
            batch.token_ids.astype(np.int32),
            *drawn_rows(batch, batch.num_tokens),
            batch.positions,
            batch.pages.slot_mapping,
            batch.query_starts,
            batch.context_lens,
            _whole_lines_of(batch.pages.block_tables),
            batch.query_starts[decoding],
            decoding.astype(np.int32),
            batch.logit_rows.astype(np.int32),
        ]
        tilings = self._tilings(batch, np.flatnonzero(counts > 1))
        for tiling in tilings:
            arrays += [tiling.tiles, tiling.merges]
        size_bytes = bytes_of(arrays)
        if size_bytes > self._upload.size_bytes:
            self._upload = InputUpload(2 * size_bytes, self._device)
        sent = [self._upload.at(place) for place in self._upload.send(arrays)]
        prefill = {
            tiling.kind: PrefillTiling(tiling.kind, tiles, merges, tiling.rounds)
            for tiling, tiles, merges in zip(
                tilings, sent[_NUM_ARRAYS::2], sent[_NUM_ARRAYS + 1 :: 2], strict=True
            )
        }
        return StepInputs(
            token_ids=sent[0],
            takes_drawn=sent[1],
            drawn_places=sent[2],
            positions=sent[3],
            slot_mapping=sent[4],
            query_starts=sent[5],
            context_lens=sent[6],
            block_tables=sent[7],
            decode_rows=sent[8],
            decode_sequences=sent[9],
            prefill=prefill,
            logit_rows=sent[10],
        )

    def _tilings(self, batch: Batch, wanted: NDArray[np.int64]) -> list[PrefillTiling[Array]]:
        if not len(wanted):
            return []
        starts, contexts = batch.query_starts, batch.context_lens
        return [tile_prefill(kind, starts, contexts, wanted) for kind in self._kinds]


def drawn_rows(batch: Batch, size: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`takes_drawn` and `drawn_places` of a batch that is padded to `size` rows."""
    takes, places = np.zeros((2, size), np.int32)
    takes[batch.drawn.rows] = 1
    places[batch.drawn.rows] = batch.drawn.places
    return takes, places


def whole_lines(count: int) -> int:
    """`count` up to a number that the widths of all block tables are multiples of."""
    return -(-count // _LINE) * _LINE


def _whole_lines_of(tables: NDArray[np.int32]) -> NDArray[np.int32]:
    missing = whole_lines(tables.shape[1]) - tables.shape[1]
    return np.pad(tables, ((0, 0), (0, missing)))
