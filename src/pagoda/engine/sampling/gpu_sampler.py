"""The sampler for logits on a GPU, in PyTorch's own operations.

    begin:  host    what each row wants ────one copy────┐
            device  largest of all rows ── of some: change, draw ── ids, soundness ──┐
    wait:   host                                          the tokens ←────one copy───┘

Rows that are drawn in the same way form tiles; a tile takes a handful of launches. A greedy row
without changes costs nothing more: its token comes with the search for what is not finite.

The CPU's sampler gives the same token for the same logits and row: it has the same random number,
the same weights and the same order. Weights are float32 in both, and the CPU adds some of them in
float32. So a random number within some 1e-6 of where two tokens' intervals meet, or a `top_p` as
near to the end of a nucleus, may fall to either side. Other rows of the batch change no more than
the last bit of a float64 sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda.engine.outputs import Logprob
from pagoda.engine.sampling.gpu_logits import LogitChanges, change_on_gpu, changes_of
from pagoda.engine.sampling.gpu_logprobs import gpu_logprobs, unpack
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.sampler import SampledToken
from pagoda.engine.sampling.tiles import as_slice, tiles
from pagoda.engine.sampling.uniforms import uniforms
from pagoda.kernels.gpu.choose import MOST_CANDIDATES, draw_by_id, draw_by_rank, largest_of
from pagoda.kernels.gpu.pinned import HostCopy, all_to_device, to_device

_LOG2_E = np.float32(1.4426950408889634)


class Way(Enum):
    """How a row's token is found."""

    LARGEST = "largest"
    BY_ID = "by id"
    """Drawn from the whole vocabulary."""
    SELECTED = "selected"
    """Drawn from the `top_k` most likely."""
    SORTED = "sorted"
    """Drawn from as many as the row's limits leave: all are ranked."""

    @classmethod
    def of(cls, row: SamplingRow, vocab_size: int) -> Way:
        """What the row's parameters ask for."""
        params = row.params
        if row.is_greedy:
            return cls.LARGEST
        if params.top_k <= 0 and params.top_p == 1.0 and params.min_p == 0.0:
            return cls.BY_ID
        selects = 0 < params.top_k <= min(MOST_CANDIDATES, vocab_size)
        return cls.SELECTED if selects else cls.SORTED


_TILE_ELEMENTS = {Way.LARGEST: 2**24, Way.BY_ID: 2**24, Way.SELECTED: 2**23, Way.SORTED: 2**22}
"""Logits looked at together: the more memory one takes on the way, the fewer.

A draw takes some 300 MB at most beside the logits themselves.
"""


class _Numbers(NamedTuple):
    """What a draw goes by, [rows] each, on the device."""

    scale: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some rows of one way, as the host has prepared them."""

    way: Way
    indices: NDArray[np.int64]
    numbers: NDArray[np.float64]
    """[5, rows]: those of `_Numbers`"""
    changes: LogitChanges[NDArray[Any]] | None
    num_candidates: int


class PendingTokens:
    """Tokens that a device chooses, or has chosen."""

    def __init__(self, logits: Tensor, rows: Sequence[SamplingRow], ids: Tensor, sound: Tensor):
        self.token_ids = ids
        """[rows] int64, on the device. Any id at all where a row's logits are not finite."""
        self._chosen = HostCopy(torch.stack([ids, sound.long()]))
        self._num_tops = {
            index: row.params.logprobs
            for index, row in enumerate(rows)
            if row.params.logprobs is not None
        }
        self._logprobs: HostCopy | None = None
        if self._num_tops:
            indices = to_device(np.array(list(self._num_tops), np.int64), logits.device)
            wanted = None if len(self._num_tops) == len(rows) else indices
            targets = ids.index_select(0, indices)
            most = max(self._num_tops.values())
            self._logprobs = HostCopy(gpu_logprobs(logits, wanted, targets, most))

    def wait(self) -> list[SampledToken | None]:
        """The tokens, once they are here; see `Draws`."""
        token_ids, sound = self._chosen.wait().tolist()
        logprobs: list[dict[int, Logprob] | None] = [None] * len(token_ids)
        if self._logprobs is not None:
            targets = [token_ids[index] for index in self._num_tops]
            found = unpack(self._logprobs.wait()).entries(targets, [*self._num_tops.values()])
            for index, entry in zip(self._num_tops, found, strict=True):
                logprobs[index] = entry
        return [
            SampledToken(token_id, entry) if is_sound else None
            for token_id, entry, is_sound in zip(token_ids, logprobs, sound, strict=True)
        ]


class GPUSampler:
    """Chooses tokens from logits on a device; see `Sampler`."""

    def begin(
        self, logits: Tensor, rows: Sequence[SamplingRow], positions: Sequence[int]
    ) -> PendingTokens:
        largest, ids = largest_of(logits)
        prepared = list(_tiles(rows, positions, logits.shape[1]))
        for tile, sent in zip(prepared, _send(prepared, logits.device), strict=True):
            indices, numbers, changes = sent
            chosen = _choose(tile, logits, largest, indices, numbers, changes)
            ids.index_copy_(0, indices, chosen)
        return PendingTokens(logits, rows, ids, largest.isfinite())

    def token_logprobs(
        self, logits: Tensor, target_ids: Sequence[int], num_top: int
    ) -> list[dict[int, Logprob]]:
        if not target_ids:
            return []
        targets = to_device(np.array(target_ids, np.int64), logits.device)
        found = HostCopy(gpu_logprobs(logits, None, targets, num_top)).wait()
        return unpack(found).entries(target_ids, [num_top] * len(target_ids))


# ---- on the host -----------------------------------------------------------------------------


def _tiles(
    rows: Sequence[SamplingRow], positions: Sequence[int], vocab_size: int
) -> Iterator[_Tile]:
    """The rows for which the largest of the model's own logits will not do."""
    ways: dict[tuple[Way, bool], list[int]] = {}
    for index, row in enumerate(rows):
        kind = Way.of(row, vocab_size), row.changes_logits
        if kind != (Way.LARGEST, False):
            ways.setdefault(kind, []).append(index)
    for (way, changes), indices in ways.items():
        for own in tiles(len(indices), vocab_size, _TILE_ELEMENTS[way]):
            yield _tile(rows, positions, indices[own], way, changes, vocab_size)


def _tile(
    rows: Sequence[SamplingRow], positions: Sequence[int], indices: list[int], way: Way,
    changes: bool, vocab_size: int,
) -> _Tile:  # fmt: skip
    own = [rows[index] for index in indices]
    params = [row.params for row in own]
    # Where the largest is wanted there may be no temperature.
    temperatures = [1.0 if row.is_greedy else row.params.temperature for row in own]
    top_k = [min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in params]
    numbers = np.array(
        [
            _LOG2_E / np.array(temperatures, np.float32),
            top_k,
            [p.top_p for p in params],
            [p.min_p for p in params],
            uniforms([row.seed for row in own], [positions[index] for index in indices]),
        ],
        np.float64,
    )
    return _Tile(
        way=way,
        indices=np.array(indices, np.int64),
        numbers=numbers,
        changes=changes_of(own, vocab_size) if changes else None,
        num_candidates=max(top_k) if way is Way.SELECTED else vocab_size,
    )


def _send(
    prepared: Sequence[_Tile], device: torch.device
) -> Iterator[tuple[Tensor, _Numbers, LogitChanges[Tensor] | None]]:
    """Each tile's indices, numbers and changes on the device, in one copy for all."""
    arrays = [
        array
        for tile in prepared
        for array in (tile.indices, tile.numbers, *(tile.changes.arrays if tile.changes else ()))
    ]
    sent = iter(all_to_device(arrays, device) if arrays else ())
    for tile in prepared:
        indices, (scale, top_k, top_p, min_p, uniform) = next(sent), next(sent)
        numbers = _Numbers(scale.float(), top_k.long(), top_p, min_p.float(), uniform)
        changes = None if tile.changes is None else tile.changes.sent(sent)
        yield indices, numbers, changes


# ---- on the device ---------------------------------------------------------------------------


def _choose(
    tile: _Tile, logits: Tensor, largest: Tensor, indices: Tensor, numbers: _Numbers,
    changes: LogitChanges[Tensor] | None,
) -> Tensor:  # fmt: skip
    """The tokens of a tile's rows, [rows] int64."""
    if changes is None:
        values, largest = _take(logits, tile, indices), largest.index_select(0, indices)
    else:
        values = logits.index_select(0, indices)
        change_on_gpu(values, changes)
        largest, ids = largest_of(values)
        if tile.way is Way.LARGEST:
            return ids
    if tile.way is Way.BY_ID:
        return draw_by_id(values, largest, numbers.scale, numbers.uniform)
    return draw_by_rank(values, largest, *numbers, num_candidates=tile.num_candidates)


def _take(logits: Tensor, tile: _Tile, indices: Tensor) -> Tensor:
    """The tile's rows; a view where they are neighbours."""
    neighbours = as_slice(tile.indices)
    return logits.index_select(0, indices) if neighbours is None else logits[neighbours]
