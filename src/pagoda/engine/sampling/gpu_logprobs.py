"""Log-probabilities of tokens by logits that lie on a device: the twin of `logprobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda.engine.outputs import Logprob
from pagoda.kernels.gpu.choose import rank_ids

_TILE_ELEMENTS = 2**24
"""Logits looked at together: temporaries stay a few hundred megabytes, however long the prompt."""


def gpu_logprobs(logits: Tensor, rows: Tensor | None, target_ids: Tensor, num_top: int) -> Tensor:
    """What `read_logprobs` takes, float64 [n, 2 + 3 top]; nothing waits for the device.

    logits: [any, vocab] float32; rows: [n] int64, those that are asked for, or None for the first
    n; target_ids: [n] int64; top is `num_top`, or all of a smaller vocabulary. A row of the result:
    its target's log-probability and rank; the ids of the most likely tokens, in the order of ranks;
    their log-probabilities; their ranks.
    """
    num_top = min(num_top, logits.shape[1])
    num_rows = max(1, _TILE_ELEMENTS // logits.shape[1])
    found = []
    for first in range(0, len(target_ids), num_rows):
        own = slice(first, first + num_rows)
        values = logits[own] if rows is None else logits.index_select(0, rows[own])
        found.append(_tile_logprobs(values[: len(target_ids) - first], target_ids[own], num_top))
    return torch.cat(found)


def _tile_logprobs(logits: Tensor, target_ids: Tensor, num_top: int) -> Tensor:
    targets = target_ids[:, None]
    logprobs = torch.log_softmax(logits, 1)
    rank = 1 + (logits > logits.gather(1, targets)).sum(1, keepdim=True)
    parts = [logprobs.gather(1, targets), rank]
    if num_top:
        ids = rank_ids(logits, num_top)
        values = logits.gather(1, ids)
        # Whatever is above one of the most likely is itself among them.
        ranks = 1 + (values[:, None, :] > values[:, :, None]).sum(2)
        parts += [ids, logprobs.gather(1, ids), ranks]
    return torch.cat([part.double() for part in parts], 1)


def read_logprobs(
    found: NDArray[Any], target_ids: Sequence[int], num_tops: Sequence[int]
) -> list[dict[int, Logprob]]:
    """Per row its target first, then as many of the most likely tokens as it asked for."""
    most = (found.shape[1] - 2) // 3
    entries = []
    for row, target_id, num_top in zip(found.tolist(), target_ids, num_tops, strict=True):
        entry = {target_id: Logprob(row[0], int(row[1]))}
        ids, logprobs, ranks = row[2 : 2 + most], row[2 + most : 2 + 2 * most], row[2 + 2 * most :]
        for token_id, logprob, rank in list(zip(ids, logprobs, ranks, strict=True))[:num_top]:
            entry.setdefault(int(token_id), Logprob(logprob, int(rank)))
        entries.append(entry)
    return entries
