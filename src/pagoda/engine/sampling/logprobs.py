"""Log-probabilities of tokens, by the model's own logits.

Of each row is told: its target, and its most likely tokens in the order of ranks. A token's rank
is 1 more than the number of larger logits, so equal ones share a rank; they stand in the order of
their ids. `told` says so once for main memory and GPUs; what differs is how the most likely tokens
and the target's rank are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda.engine.outputs import Logprob
from pagoda.engine.sampling.tiles import tiles
from pagoda.kernels.gpu.choose import rank_ids

_TILE_ELEMENTS = 2**20
"""Logits looked at together: temporaries stay a few megabytes, however long the prompt."""


def token_logprobs(
    logits: Tensor, target_ids: Sequence[int], num_top: int
) -> list[dict[int, Logprob]]:
    """Per row of `logits` [rows, vocab] float32: its target and its `num_top` most likely tokens.

    The target comes first; equal logits stand in the order of their ids. `decoded_token` is None.
    """
    found: list[dict[int, Logprob]] = []
    for own in tiles(len(target_ids), logits.shape[1], _TILE_ELEMENTS):
        values, targets = logits[own], torch.tensor(target_ids[own])[:, None]
        # One more than asked for tells whether the last one is tied with what follows.
        top = values.topk(min(num_top + 1, values.shape[1]), 1)
        most_likely = _in_order(values, top.values, top.indices)[:, :num_top]
        table = told(values, targets, _ranks(values, targets, top.values), most_likely)
        found += read_told(table.numpy(), target_ids[own], [num_top] * len(values))
    return found


def told(logits: Tensor, targets: Tensor, ranks: Tensor, most_likely: Tensor) -> Tensor:
    """What `read_told` reads, float64 [n, 2 + 3 top]; nothing waits for the device.

    logits: [n, vocab] float32; targets: [n, 1] int64; ranks: [n, 1], theirs; most_likely: [n, top]
    int64, the largest first and equal ones by ascending id. A row of the result: its target's
    log-probability and rank; the most likely tokens' ids; their log-probabilities; their ranks.
    """
    logprobs = torch.log_softmax(logits, 1)
    parts = [logprobs.gather(1, targets), ranks]
    if most_likely.shape[1]:
        values = logits.gather(1, most_likely)
        # Whatever is above one of the most likely is itself among them.
        top_ranks = 1 + (values[:, None, :] > values[:, :, None]).sum(2)
        parts += [most_likely, logprobs.gather(1, most_likely), top_ranks]
    return torch.cat([part.double() for part in parts], 1)


def read_told(
    table: NDArray[Any], target_ids: Sequence[int], num_tops: Sequence[int]
) -> list[dict[int, Logprob]]:
    """Per row its target first, then as many of the most likely tokens as it asked for."""
    most = (table.shape[1] - 2) // 3
    entries = []
    for row, target_id, num_top in zip(table.tolist(), target_ids, num_tops, strict=True):
        entry = {target_id: Logprob(row[0], int(row[1]))}
        ids, logprobs, ranks = row[2 : 2 + most], row[2 + most : 2 + 2 * most], row[2 + 2 * most :]
        for token_id, logprob, rank in list(zip(ids, logprobs, ranks, strict=True))[:num_top]:
            entry.setdefault(int(token_id), Logprob(logprob, int(rank)))
        entries.append(entry)
    return entries


def _in_order(logits: Tensor, top_values: Tensor, top_ids: Tensor) -> Tensor:
    """`top_ids` [n, top] in the order of ranks: selection orders equal values as it likes."""
    tied = (top_values[:, 1:] == top_values[:, :-1]).any(1).nonzero()[:, 0]
    if len(tied):
        top_ids[tied] = rank_ids(logits[tied], top_ids.shape[1])
    return top_ids


def _ranks(logits: Tensor, targets: Tensor, top_values: Tensor) -> Tensor:
    """1 + how many of each row's logits are above its target's, [n, 1]."""
    target_values = logits.gather(1, targets)
    num_above = (top_values > target_values).sum(1, keepdim=True)
    # Only a target below all of the top needs a look at its whole row.
    deep = (num_above[:, 0] == top_values.shape[1]).nonzero()[:, 0]
    if len(deep):
        num_above[deep] = (logits[deep] > target_values[deep]).sum(1, keepdim=True)
    return num_above + 1
