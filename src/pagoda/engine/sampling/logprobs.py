"""Log-probabilities of tokens, by the model's own logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pagoda.engine.outputs import Logprob

_TILE_ELEMENTS = 2**20
"""Logits looked at together: temporaries stay a few megabytes, however long the prompt."""


def token_logprobs(
    logits: Tensor, target_ids: Sequence[int], num_top: int
) -> list[dict[int, Logprob]]:
    """Per row of `logits` [rows, vocab] float32: its target and its `num_top` most likely tokens.

    The target comes first; equal logits stand in the order of their ids. `decoded_token` is None.
    """
    tile = max(1, _TILE_ELEMENTS // logits.shape[1])
    found: list[dict[int, Logprob]] = []
    for first in range(0, len(target_ids), tile):
        found += _tile_logprobs(
            logits[first : first + tile], target_ids[first : first + tile], num_top
        )
    return found


def _tile_logprobs(
    logits: Tensor, target_ids: Sequence[int], num_top: int
) -> list[dict[int, Logprob]]:
    logprobs = torch.log_softmax(logits, 1)
    targets = torch.tensor(target_ids, device=logits.device)[:, None]
    target_values = logits.gather(1, targets)
    target_logprobs = logprobs.gather(1, targets)[:, 0].tolist()
    # One more than asked for tells whether the last one is tied with what follows.
    top = logits.topk(min(num_top + 1, logits.shape[1]), 1)
    top_logprobs = logprobs.gather(1, top.indices).tolist()
    values, ids = top.values.tolist(), top.indices.tolist()
    ranks = _ranks(logits, target_values, top.values)

    found = []
    for row, target_id in enumerate(target_ids):
        entry = {target_id: Logprob(target_logprobs[row], ranks[row])}
        rank = 1
        for position in range(min(num_top, logits.shape[1])):
            if position and values[row][position] != values[row][position - 1]:
                rank = position + 1
            token_id = _id_at_rank(logits[row], values[row], ids[row], position)
            entry.setdefault(token_id, Logprob(top_logprobs[row][position], rank))
        found.append(entry)
    return found


def _ranks(logits: Tensor, target_values: Tensor, top_values: Tensor) -> list[int]:
    """1 + how many of each row's logits are above its target's."""
    num_above = (top_values > target_values).sum(1)
    # Only a target below all of the top needs a look at its whole row.
    deep = (num_above == top_values.shape[1]).nonzero()[:, 0]
    if len(deep):
        num_above[deep] = (logits[deep] > target_values[deep]).sum(1)
    return (num_above + 1).tolist()


def _id_at_rank(row: Tensor, values: Sequence[float], ids: Sequence[int], rank: int) -> int:
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
    return _id_among_equals(row, value, rank - first)


def _id_among_equals(row: Tensor, value: float, position: int) -> int:
    """Of the entries of `row` [vocab] equal to `value`, the id of number `position` (from 0)."""
    return int(np.flatnonzero(row.numpy(force=True) == np.float32(value))[position])
