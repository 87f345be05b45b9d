"""What requests change in logits that lie on a device: the twin of `logits.change_logits`.

The host says which entries are concerned and what happens to them, in a few arrays for all rows;
the device does it, in a few launches for all rows. No row comes to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda.engine.sampling.logits import SamplingRow

T = TypeVar("T")


class LogitChanges(NamedTuple, Generic[T]):
    """Changes of some rows, as NumPy's arrays or as tensors on a device.

    A place is `row * vocab_size + token_id`, int64. At most one change of a kind has a place,
    except for repetition penalties, which are the same wherever they name a place again.
    """

    masked_rows: T
    """[n] int64: rows with a grammar"""
    masks: T
    """[n, vocab / 8, rounded up] uint8: what a grammar allows, a bit for a token"""
    bias_places: T
    biases: T
    """[n] float32: added"""
    stop_places: T
    """Tokens that are masked, unless that would leave nothing."""
    seen_places: T
    repetition_penalties: T
    """[n] float32: they divide positive logits and multiply negative ones"""
    said_places: T
    output_penalties: T
    """[n] float32: subtracted"""


def changes_of(rows: Sequence[SamplingRow], vocab_size: int) -> LogitChanges[NDArray[Any]]:
    """What the rows change in logits [rows, vocab]."""
    masked_rows, masks = _masks(rows, vocab_size)
    biases = _gathered(rows, vocab_size, _biases)
    stops = _gathered(rows, vocab_size, _stops)
    seen = _gathered(rows, vocab_size, _repetition_penalties)
    said = _gathered(rows, vocab_size, _output_penalties)
    return LogitChanges(masked_rows, masks, *biases, stops[0], *seen, *said)


def change_on_device(values: Tensor, changes: LogitChanges[Tensor]) -> None:
    """Make the changes in `values` [rows, vocab] float32, contiguous, in place.

    The order is that of `logits.change_logits`, and so is every rounding.
    """
    flat = values.view(-1)
    if len(changes.masked_rows):
        _mask(values, changes.masked_rows, changes.masks)
    if len(changes.bias_places):
        flat[changes.bias_places] = flat[changes.bias_places] + changes.biases
    if len(changes.stop_places):
        _mask_stops(values, changes.stop_places)
    if len(changes.seen_places):
        taken, penalties = flat[changes.seen_places], changes.repetition_penalties
        flat[changes.seen_places] = torch.where(taken > 0, taken / penalties, taken * penalties)
    if len(changes.said_places):
        flat[changes.said_places] = flat[changes.said_places] - changes.output_penalties


def _mask(values: Tensor, rows: Tensor, masks: Tensor) -> None:
    bits = torch.arange(8, dtype=torch.uint8, device=values.device)
    allowed = ((masks[:, :, None] >> bits) & 1).view(len(rows), -1)[:, : values.shape[1]]
    masked = values.index_select(0, rows).masked_fill_(allowed == 0, -torch.inf)
    values.index_copy_(0, rows, masked)


def _mask_stops(values: Tensor, places: Tensor) -> None:
    flat = values.view(-1)
    taken = flat[places]
    flat.index_fill_(0, places, -torch.inf)  # to assign a number, PyTorch waits for the device
    # Where a grammar leaves nothing but the end, the end it is.
    is_empty = values.amax(1) == -torch.inf
    row = torch.div(places, values.shape[1], rounding_mode="floor")
    flat[places] = torch.where(is_empty[row], taken, -torch.inf)


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


# ---- of one row: token ids, and a number for each ----------------------------------------------

_Entries = tuple[NDArray[np.int64], NDArray[np.float32]]


def _gathered(
    rows: Sequence[SamplingRow], vocab_size: int, entries_of: Callable[[SamplingRow], _Entries]
) -> _Entries:
    """All rows' entries by place, without ids beyond the vocabulary: they can never come up."""
    places, numbers = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for index, row in enumerate(rows):
        token_ids, own = entries_of(row)
        if len(token_ids):
            inside = token_ids < vocab_size
            places.append(index * vocab_size + token_ids[inside])
            numbers.append(own[inside])
    return np.concatenate(places), np.concatenate(numbers)


_NOTHING = np.empty(0, np.int64), np.empty(0, np.float32)


def _biases(row: SamplingRow) -> _Entries:
    bias = row.params.logit_bias
    return np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32)


def _stops(row: SamplingRow) -> _Entries:
    if not row.awaits_min_tokens:
        return _NOTHING
    stops = np.array(list(row.stop_token_ids), np.int64)
    return stops, np.zeros(len(stops), np.float32)


def _repetition_penalties(row: SamplingRow) -> _Entries:
    penalty = np.float32(row.params.repetition_penalty)
    if penalty == 1.0:
        return _NOTHING
    seen = np.array([*row.prompt_token_ids, *row.output_token_ids], np.int64)
    return seen, np.full(len(seen), penalty)


def _output_penalties(row: SamplingRow) -> _Entries:
    presence, frequency = row.params.presence_penalty, row.params.frequency_penalty
    if (presence == 0.0 and frequency == 0.0) or not row.output_token_ids:
        return _NOTHING
    said = np.array(row.output_token_ids, np.int64)
    token_ids, counts = np.unique(said, return_counts=True)
    return token_ids, (presence + frequency * counts).astype(np.float32)
