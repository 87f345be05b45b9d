"""Draws: one uniform number becomes one token.

Two fixed orders make a draw repeatable. A row without filters is cut in the order of token ids; a
row with top_k, top_p or min_p in rank order: most likely first, equal logits by ascending id. Each
filter keeps a prefix of the rank order, so only *values* have to be sorted; the id is looked up at
the end. Nothing here lets one row's result depend on another row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CHUNK = 256
"""A row is searched in two levels: which chunk, then where in it."""

_MASK = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Filters:
    """What the rows of a group keep; every field has one entry per row."""

    temperature: Tensor
    """float32 [rows], above 0."""
    top_k: Tensor
    """int64 [rows]; the vocabulary's size keeps all."""
    top_p: Tensor
    """float64 [rows]."""
    min_p: Tensor
    """float32 [rows]."""


@dataclass(frozen=True, slots=True)
class DrawnRanks:
    """`rank` [rows] int64 in rank order; meaningful where `resolved` [rows] bool."""

    rank: Tensor
    resolved: Tensor


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """float64 [rows] in [0, 1): a pure function of each row's seed and position.

    The generator is SplitMix64 (Steele, Lea, Flood 2014), entered at `position`; the seed passes
    through its finaliser first, so that neighbouring seeds share no stream.
    """
    start = np.array([seed & _MASK for seed in seeds], dtype=np.uint64)
    step = np.array(positions, dtype=np.uint64) + np.uint64(1)
    bits = _mix(_mix(start + _GOLDEN) + step * _GOLDEN)
    return np.ldexp((bits >> np.uint64(11)).astype(np.float64), -53)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def largest_ids(logits: Tensor) -> Tensor:
    """int64 [rows]: the id of the largest of `logits` [rows, vocab]; of equals the lowest."""
    chunk = _reduce_chunks(logits, lambda part: part.amax(-1)).argmax(1)
    return chunk * _CHUNK + _take_chunk(logits, chunk, -torch.inf).argmax(1)


def draw_ids(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """int64 [rows]: inverse distribution function of `probabilities` [rows, vocab] in id order.

    `uniform` is float64 [rows]. The probabilities need not sum to 1; a zero is never drawn.
    """
    cumulative = _reduce_chunks(probabilities, lambda part: part.sum(-1)).cumsum(
        1, dtype=torch.float64
    )
    target = uniform[:, None] * cumulative[:, -1:]
    chunk = torch.searchsorted(cumulative, target, right=True)
    before = cumulative.gather(1, (chunk - 1).clamp_(min=0)).masked_fill_(chunk == 0, 0.0)
    within = _take_chunk(probabilities, chunk[:, 0], 0.0).cumsum(1, dtype=torch.float64)
    # The chunk's sum was rounded differently, so the remainder may lie a hair beyond its end.
    end = torch.nextafter(within[:, -1:], torch.zeros_like(before))
    remainder = torch.minimum(target - before, end)
    return (chunk * _CHUNK + torch.searchsorted(within, remainder, right=True))[:, 0]


def draw_ranks(
    values: Tensor, filters: Filters, uniform: Tensor, total: Tensor | None = None
) -> DrawnRanks:
    """Draw from the largest logits of each row.

    `values` [rows, width] float32 descend. `total` None says that what the filters keep lies
    within them. Otherwise it is, float64 [rows], the sum over the whole row of
    exp((logit - largest) / temperature), and rows that keep more are left unresolved.
    """
    width = values.shape[1]
    weights = (values - values[:, :1]).div_(filters.temperature[:, None]).exp_()
    cumulative = weights.cumsum(1, dtype=torch.float64)
    by_min_p = torch.full_like(filters.top_k, width)
    if filters.min_p.any():
        by_min_p = (weights >= filters.min_p[:, None]).sum(1)
    kept = torch.minimum(filters.top_k, by_min_p).clamp_(max=width)
    mass = cumulative.gather(1, kept[:, None] - 1)
    resolved = torch.ones_like(kept, dtype=torch.bool)
    if total is not None:
        resolved = (filters.top_k <= width) | (by_min_p < width)
        mass = torch.where(resolved[:, None], mass, total[:, None])
    # A token stays while those before it hold less than top_p of what the other filters left.
    limit = filters.top_p[:, None] * mass
    if total is not None:
        resolved |= (filters.min_p == 0) & (cumulative[:, -1] >= limit[:, 0])
    by_top_p = torch.searchsorted(cumulative, limit)[:, 0] + 1
    kept = torch.minimum(kept, by_top_p)
    target = uniform[:, None] * cumulative.gather(1, kept[:, None] - 1)
    return DrawnRanks(torch.searchsorted(cumulative, target, right=True)[:, 0], resolved)


def sort_descending(logits: Tensor) -> Tensor:
    """The values of each row of `logits` [rows, vocab], largest first, without their ids."""
    if logits.device.type == "cpu":
        # NumPy sorts bare values with vector instructions, an order of magnitude faster.
        return torch.from_numpy(np.sort((-logits).numpy(), axis=1)).neg_()
    return logits.sort(dim=1, descending=True).values


def id_at_rank(row: Tensor, values: Sequence[float], ids: Sequence[int], rank: int) -> int:
    """The id at `rank` of `row` [vocab], given its largest `values`, descending, and their `ids`.

    `ids` may order equal values as it likes: where there are any, the row itself is searched.
    """
    value = values[rank]
    if (rank == 0 or values[rank - 1] != value) and values[rank + 1 : rank + 2] not in (
        [],
        [value],
    ):
        return ids[rank]
    first = rank
    while first > 0 and values[first - 1] == value:
        first -= 1
    return id_among_equals(row, value, rank - first)


def id_among_equals(row: Tensor, value: float, position: int) -> int:
    """Of the entries of `row` [vocab] equal to `value`, the id of number `position` (from 0)."""
    return int(np.flatnonzero(row.numpy(force=True) == np.float32(value))[position])


def _reduce_chunks(rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """[rows, chunks]: `reduce` over each run of `_CHUNK` columns; the last may be shorter."""
    num_rows, width = rows.shape
    num_whole = width // _CHUNK
    whole = rows[:, : num_whole * _CHUNK].view(num_rows, num_whole, _CHUNK)
    if num_whole * _CHUNK == width:
        return reduce(whole)
    rest = reduce(rows[:, num_whole * _CHUNK :]).view(num_rows, 1)
    return torch.cat([reduce(whole), rest], 1) if num_whole else rest


def _take_chunk(rows: Tensor, chunk: Tensor, filler: float) -> Tensor:
    """[rows, _CHUNK]: of each row the chunk `chunk` [rows], filled up where the row is over."""
    column = chunk[:, None] * _CHUNK + torch.arange(_CHUNK, device=rows.device)
    width = rows.shape[1]
    taken = rows.gather(1, column.clamp(max=width - 1))
    return taken.masked_fill_(column >= width, filler)
