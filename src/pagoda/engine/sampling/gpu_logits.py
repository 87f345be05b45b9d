"""The applier of rules to logits on a GPU: a few launches for all rows, no row on the host.

The host puts what the rows' rules say into four arrays for one copy; the device does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.rule import Edit, Entries, Rule
from pagoda.engine.sampling.rules.table import RULES

T = TypeVar("T")


class ChangeArrays(NamedTuple, Generic[T]):
    """Changes of some rows, as NumPy's arrays or as tensors on a device."""

    masked_rows: T
    """[n] int64: rows with a grammar"""
    masks: T
    """[n, vocab / 8, rounded up] uint8: what a grammar allows, a bit for a token"""
    places: T
    """[m] int64: `row * vocab_size + token_id`, one rule after the other"""
    numbers: T
    """[m] float32"""


@dataclass(frozen=True, slots=True)
class LogitChanges(Generic[T]):
    """What some rows change in their logits."""

    arrays: ChangeArrays[T]
    edits: tuple[tuple[Edit, slice], ...]
    """The rules' edits in their order, each with its part of `places`, where none stands twice."""

    def sent(self, arrays: Iterator[Tensor]) -> LogitChanges[Tensor]:
        """The same changes with the next of `arrays`, which lie on the device."""
        return LogitChanges(ChangeArrays(*(next(arrays) for _ in self.arrays)), self.edits)


def changes_of(rows: Sequence[SamplingRow], vocab_size: int) -> LogitChanges[NDArray[Any]]:
    """What the rows change in logits [rows, vocab]. Raises `MatchError`."""
    said: dict[Rule, list[tuple[int, Entries]]] = {}
    for index, row in enumerate(rows):
        for rule, entries in row.edits(vocab_size):
            said.setdefault(rule, []).append((index, entries))
    places, numbers = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    edits, num_places = [], 0
    for rule in (rule for rule in RULES if rule in said):
        first = num_places
        for index, entries in said[rule]:
            places.append(index * vocab_size + entries.token_ids)
            numbers.append(entries.numbers)
            num_places += len(entries.token_ids)
        edits.append((rule.edit, slice(first, num_places)))
    arrays = (*_masks(rows, vocab_size), np.concatenate(places), np.concatenate(numbers))
    return LogitChanges(ChangeArrays(*arrays), tuple(edits))


def change_on_gpu(values: Tensor, changes: LogitChanges[Tensor]) -> None:
    """Make the changes in `values` [rows, vocab] float32, contiguous, in place.

    The order and every rounding are those of `logits.change_logits`.
    """
    masked_rows, masks, places, numbers = changes.arrays
    if len(masked_rows):
        _mask(values, masked_rows, masks)
    for edit, own in changes.edits:
        _APPLY[edit](values, places[own], numbers[own])


def _masks(
    rows: Sequence[SamplingRow], vocab_size: int
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    indices, masks = [], [np.empty((0, -(-vocab_size // 8)), np.uint8)]
    for index, row in enumerate(rows):
        if row.matcher is not None:
            allowed = row.matcher.follow(row.output_token_ids)[:vocab_size]
            bits = np.packbits(allowed, bitorder="little")
            indices.append(index)
            masks.append(np.pad(bits, (0, masks[0].shape[1] - len(bits)))[None])
    return np.array(indices, np.int64), np.concatenate(masks)


def _mask(values: Tensor, rows: Tensor, masks: Tensor) -> None:
    bits = torch.arange(8, dtype=torch.uint8, device=values.device)
    allowed = ((masks[:, :, None] >> bits) & 1).view(len(rows), -1)[:, : values.shape[1]]
    masked = values.index_select(0, rows).masked_fill_(allowed == 0, -torch.inf)
    values.index_copy_(0, rows, masked)


def _add(values: Tensor, places: Tensor, numbers: Tensor) -> None:
    flat = values.view(-1)
    flat[places] = flat[places] + numbers


def _scale(values: Tensor, places: Tensor, numbers: Tensor) -> None:
    flat = values.view(-1)
    taken = flat[places]
    flat[places] = torch.where(taken > 0, taken / numbers, taken * numbers)


def _ban(values: Tensor, places: Tensor, numbers: Tensor) -> None:
    flat = values.view(-1)
    taken = flat[places]
    flat.index_fill_(0, places, -torch.inf)  # to assign a number, PyTorch waits for the device
    is_empty = values.amax(1) == -torch.inf
    row = torch.div(places, values.shape[1], rounding_mode="floor")
    flat[places] = torch.where(is_empty[row], taken, -torch.inf)


def _keep(values: Tensor, places: Tensor, numbers: Tensor) -> None:
    dropped = torch.full_like(values, -torch.inf)
    flat = dropped.view(-1)
    flat[places] = values.view(-1)[places]
    has_any = dropped.isfinite().any(1, keepdim=True)
    values.copy_(torch.where(has_any, dropped, values))


_APPLY: dict[Edit, Callable[[Tensor, Tensor, Tensor], None]] = {
    Edit.ADD: _add,
    Edit.SCALE: _scale,
    Edit.BAN: _ban,
    Edit.KEEP: _keep,
}
