"""Log-probabilities of tokens, by the model's own logits.

Of each row is told: its target, and its most likely tokens in the order of ranks. A token's rank
is 1 more than the number of larger logits. Equal logits share a rank and stand in the order of
their ids. This is said here, for main memory and GPUs; what differs between them is how the most
likely tokens and the target's rank are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from pagoda.engine.outputs import Logprob
from pagoda.engine.sampling.tiles import tiles
from pagoda.kernels.array import Array

T = TypeVar("T")

_TILE_ELEMENTS = 2**20
"""Logits looked at together: temporaries stay a few megabytes, however long the prompt."""


class Told(NamedTuple, Generic[T]):
    """What is told of n rows, as tensors or as arrays."""

    logprobs: T
    """[n, 1]: the target's"""
    ranks: T
    """[n, 1]: the target's"""
    top_ids: T
    """[n, top]: the most likely tokens, the largest logit first, equal ones by ascending id"""
    top_logprobs: T
    """[n, top]"""
    top_logits: T
    """[n, top]: equal ones share a rank"""

    @classmethod
    def of(cls, logits: Tensor, targets: Tensor, ranks: Tensor, top_ids: Tensor) -> Told[Tensor]:
        """From `logits` [n, vocab] float32 and `targets` [n, 1]; nothing waits for the device."""
        logprobs = torch.log_softmax(logits, 1)
        of_targets, of_top = logprobs.gather(1, targets), logprobs.gather(1, top_ids)
        return Told(of_targets, ranks, top_ids, of_top, logits.gather(1, top_ids))

    def entries(
        self: Told[Any], target_ids: Sequence[int], num_tops: Sequence[int]
    ) -> list[dict[int, Logprob]]:
        """Per row its target first, then as many of the most likely tokens as it asked for."""
        found = []
        columns = (column.tolist() for column in self)
        for target_id, num_top, (logprob,), (rank,), ids, logprobs, logits in zip(
            target_ids, num_tops, *columns, strict=True
        ):
            entry = {target_id: Logprob(logprob, int(rank))}
            top_rank = 1
            for place in range(min(num_top, len(ids))):
                if place and logits[place] != logits[place - 1]:
                    top_rank = place + 1
                entry.setdefault(int(ids[place]), Logprob(logprobs[place], top_rank))
            found.append(entry)
        return found


def token_logprobs(
    logits: Tensor, target_ids: Sequence[int], num_top: int
) -> list[dict[int, Logprob]]:
    """Per row of `logits` [rows, vocab] float32: its target and its `num_top` most likely tokens.

    The target comes first; equal logits stand in the order of their ids. `decoded_token` is None.
    """
    found: list[dict[int, Logprob]] = []
    targets = np.array(target_ids, np.int64)
    for own in tiles(len(targets), logits.shape[1], _TILE_ELEMENTS):
        values, wanted = logits[own], targets[own]
        # One more than asked for tells whether the last one is tied with what follows.
        top = values.topk(min(num_top + 1, values.shape[1]), 1)
        _order_equals(values.numpy(), top.values.numpy(), top.indices.numpy())
        ranks = torch.from_numpy(_ranks(values.numpy(), wanted, top.values.numpy()))
        told = Told.of(values, torch.from_numpy(wanted[:, None]), ranks, top.indices[:, :num_top])
        found += told.entries(target_ids[own], [num_top] * len(wanted))
    return found


def _order_equals(logits: Array, top_values: Array, top_ids: Array) -> None:
    """Bring `top_ids` [n, top] into the order of ranks: `topk` orders equal values as it likes."""
    tied = (top_values[:, 1:] == top_values[:, :-1]).any(1)
    for index in tied.nonzero()[0].tolist():
        values = logits[index]
        candidates = np.flatnonzero(~(values < top_values[index, -1]))
        order = np.argsort(-values[candidates], kind="stable")[: top_ids.shape[1]]
        top_ids[index] = candidates[order]


def _ranks(logits: Array, targets: Array, top_values: Array) -> Array:
    """1 + how many of each row's logits are above its target's, [n, 1]; targets: [n]"""
    target_values = logits[np.arange(len(targets)), targets][:, None]
    num_above = (top_values > target_values).sum(1, keepdims=True)
    # Only a target below all of the top needs a look at its whole row.
    deep = (num_above[:, 0] == top_values.shape[1]).nonzero()[0]
    if len(deep):
        num_above[deep] = (logits[deep] > target_values[deep]).sum(1, keepdims=True)
    return num_above + 1
