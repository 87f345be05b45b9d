"""Choosing tokens from rows of logits on a device, in PyTorch's own operations.

Rows come in tiles [rows, vocab]; a handful of launches serves all rows of a tile, and none waits
for the device. As on CPUs (`kernels.cpu.choose`, where the rules are told) a weight is a float32
power of two, and tokens stand in the order of ids where nothing is filtered, else in that of ranks:
the largest first, equal ones by ascending id. Weights are added up in float64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

CHUNK = 256
"""Weights that are added up before chunks are: the draw looks into one chunk alone."""

MOST_CANDIDATES = 1024
"""Up to as many of the largest are selected; beyond that, the row is sorted."""

# The largest float32 below 2 ** -126: what is not above it is no weight.
_NO_WEIGHT = 2.0**-126 - 2.0**-149


def largest_of(values: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's largest value, NaN if it has one, and the lowest id that has it."""
    largest, ids = values.max(1)
    return largest, ids


def draw_by_id(values: Tensor, largest: Tensor, scale: Tensor, uniform: Tensor) -> Tensor:
    """A token of every row of `values` [rows, vocab] float32, in the order of ids: [rows] int64.

    largest: of each row; scale: [rows] float32, log2(e) / temperature; uniform: [rows] float64.
    """
    num_rows, vocab_size = values.shape
    num_chunks = -(-vocab_size // CHUNK)
    weights = values.new_empty(num_rows, num_chunks * CHUNK)
    weights[:, vocab_size:] = 0.0
    _weigh(values, largest, scale, weights[:, :vocab_size])
    chunks = weights.view(num_rows, num_chunks, CHUNK)
    sums = chunks.sum(2, dtype=torch.float64)
    cumulative = sums.cumsum(1)
    target = uniform[:, None] * cumulative[:, -1:]
    chunk = _first_beyond(sums, cumulative, target)
    own = chunks.gather(1, chunk[:, :, None].expand(-1, 1, CHUNK))[:, 0].double()
    before = _before(cumulative).gather(1, chunk)
    place = _first_beyond(own, before + own.cumsum(1), target)
    return (chunk * CHUNK + place)[:, 0]


def draw_by_rank(
    values: Tensor, largest: Tensor, scale: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor,
    uniform: Tensor, num_candidates: int,
) -> Tensor:  # fmt: skip
    """A token of every row of `values` [rows, vocab] float32, of those that its limits leave.

    top_k: [rows] int64, 1 to `num_candidates`; top_p: [rows] float64; min_p: [rows] float32; the
    others as in `draw_by_id`. Returns [rows] int64.
    """
    ids = rank_ids(values, num_candidates)
    weights = torch.empty(ids.shape, dtype=torch.float32, device=values.device)
    _weigh(values.gather(1, ids), largest, scale, weights)
    rank = torch.arange(num_candidates, device=values.device)
    kept = (rank < top_k[:, None]) & (weights >= min_p[:, None])
    wide = weights.double().masked_fill_(~kept, 0.0)
    cumulative = wide.cumsum(1)
    # A token stays while those before it hold less than the limit.
    beyond = _before(cumulative) >= top_p[:, None] * cumulative[:, -1:]
    wide.masked_fill_(beyond, 0.0)
    mass = cumulative.masked_fill(wide == 0.0, 0.0).amax(1, keepdim=True)
    place = _first_beyond(wide, cumulative, uniform[:, None] * mass)
    return ids.gather(1, place)[:, 0]


def rank_ids(values: Tensor, count: int) -> Tensor:
    """The ids of each row's `count` largest, in the order of ranks: [rows, count] int64."""
    vocab_size = values.shape[1]
    # Zeros of both signs tie: a sum with plus zero is never minus zero.
    values = values + 0.0
    if count > MOST_CANDIDATES or count == vocab_size:
        return values.sort(dim=1, descending=True, stable=True).indices[:, :count]
    # Selection orders equal values as it likes, so each gets a key of its own: the value's bits as
    # a whole number that orders as it does, and below that the id, the lower the better.
    bits = values.view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long().mul_(2**32)
    keys.sub_(torch.arange(vocab_size, device=values.device))
    return keys.topk(count, 1).values.neg_().bitwise_and_(2**32 - 1)


def _weigh(values: Tensor, largest: Tensor, scale: Tensor, out: Tensor) -> None:
    """Write 2 ** ((value - largest) · scale), 0 below 2 ** -126. All are float32."""
    torch.sub(values, largest[:, None], out=out)
    F.threshold(out.mul_(scale[:, None]).exp2_(), _NO_WEIGHT, 0.0, inplace=True)


def _before(cumulative: Tensor) -> Tensor:
    """From sums up to each place, [rows, n], the sums up to the one before it."""
    return F.pad(cumulative[:, :-1], (1, 0))


def _first_beyond(weights: Tensor, cumulative: Tensor, target: Tensor) -> Tensor:
    """The first place with a weight whose sum exceeds the target, or the last: [rows, 1].

    All are [rows, n]; target: [rows, 1]. Sums of many threads need not quite ascend, and the
    target may be a hair beyond the last one: still, no place without a weight is ever found, and
    none beyond the row, even where logits are not finite.
    """
    num_places = weights.shape[1]
    place = torch.arange(num_places, device=weights.device)
    weighty = weights > 0.0
    first = torch.where(weighty & (cumulative > target), place, num_places).amin(1, keepdim=True)
    last = torch.where(weighty, place, 0).amax(1, keepdim=True)
    return torch.minimum(first, last)
