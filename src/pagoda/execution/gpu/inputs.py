"""What the launches of a step read, on the device: where tokens go, and who attends to what.

Rows with one token in the step go to decode attention, also where others of the batch have more;
those go to prefill attention by a tiling for each kind of layers. Each group of layers has tables
and slots of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.execution.batch import Batch
from pagoda.execution.gpu.group_inputs import GroupInputs, Sight, arrays_of, taken
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
    query_starts: torch.Tensor
    """[S + 1] int32"""
    context_lens: torch.Tensor
    """[S] int32; 0: a row that pads"""
    groups: tuple[GroupInputs, ...]
    """Of the cache's groups of layers, in order."""
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


_NUM_ARRAYS, _NUM_GROUP_ARRAYS, _NUM_TILING_ARRAYS = 9, 4, 2
"""Arrays that every batch sends, and those of a group and of a tiling, at most."""
_ROW_BYTES, _SEQUENCE_BYTES = 3 * 4 + 4 + 4, 4 + 4 + 4 + 4
"""Bytes of a token: its id or where it was drawn, position and row of logits; and of a sequence:
its start, its context, and its row and number if it decodes."""
_GROUP_ROW_BYTES, _GROUP_SEQUENCE_BYTES = 8 + 4, 8
"""The same in each group: slot and place for sinks; window and sinks, without the table."""
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
        sights: Sequence[Sight],
        device: torch.device,
        *,
        max_num_tokens: int,
        max_num_seqs: int,
        max_blocks: int,
    ) -> None:
        """`kinds` of all layers, `sights` of all groups."""
        self._kinds = tuple(dict.fromkeys(kinds))
        self._sights = tuple(sights)
        self._device = device
        num_groups = len(self._sights)
        group_bytes = _GROUP_SEQUENCE_BYTES + 4 * whole_lines(max_blocks)
        size_bytes = max_num_tokens * (_ROW_BYTES + num_groups * _GROUP_ROW_BYTES)
        size_bytes += max_num_seqs * (_SEQUENCE_BYTES + num_groups * group_bytes)
        size_bytes += sum(
            kind.most_tiling_bytes(max_num_tokens, max_num_seqs) for kind in self._kinds
        )
        num_arrays = _NUM_ARRAYS + _NUM_GROUP_ARRAYS * num_groups
        num_arrays += _NUM_TILING_ARRAYS * len(self._kinds)
        self._upload = InputUpload(size_bytes + num_arrays * ALIGNMENT, device)

    def of(self, batch: Batch) -> StepInputs:
        """The batch on the device, good until the next call."""
        counts = np.diff(batch.query_starts)
        decoding = np.flatnonzero(counts == 1)
        arrays: list[Integers] = [
            batch.token_ids.astype(np.int32),
            *drawn_rows(batch, batch.num_tokens),
            batch.positions,
            batch.query_starts,
            batch.context_lens,
            batch.query_starts[decoding],
            decoding.astype(np.int32),
            batch.logit_rows.astype(np.int32),
        ]
        for number, (pages, sight) in enumerate(zip(batch.groups, self._sights, strict=True)):
            arrays += [_whole_lines_of(pages.block_tables), *arrays_of(batch, number, sight)]
        tilings = self._tilings(batch, np.flatnonzero(counts > 1))
        for tiling in tilings:
            arrays += [tiling.tiles, tiling.merges]
        sent = self._send(arrays)
        return StepInputs(
            token_ids=next(sent),
            takes_drawn=next(sent),
            drawn_places=next(sent),
            positions=next(sent),
            query_starts=next(sent),
            context_lens=next(sent),
            decode_rows=next(sent),
            decode_sequences=next(sent),
            logit_rows=next(sent),
            groups=tuple(taken(sent, next(sent), sight) for sight in self._sights),
            prefill={
                tiling.kind: PrefillTiling(tiling.kind, next(sent), next(sent), tiling.rounds)
                for tiling in tilings
            },
        )

    def _send(self, arrays: Sequence[Integers]) -> Iterator[torch.Tensor]:
        """They, on the device; memory grows where they do not fit."""
        size_bytes = bytes_of(arrays)
        if size_bytes > self._upload.size_bytes:
            self._upload = InputUpload(2 * size_bytes, self._device)
        return map(self._upload.at, self._upload.send(arrays))

    def _tilings(self, batch: Batch, wanted: NDArray[np.int64]) -> list[PrefillTiling[Array]]:
        if not len(wanted):
            return []
        starts, contexts = batch.query_starts, batch.context_lens
        return [
            tile_prefill(kind, starts, contexts, wanted, self._windows(batch, kind.group))
            for kind in self._kinds
        ]

    def _windows(self, batch: Batch, group: int) -> Array | None:
        return batch.groups[group].windows if self._sights[group].has_window else None


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
