"""Log-probabilities of tokens by logits that lie on a device: the twin of `logprobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda.engine.outputs import Logprob
from pagoda.kernels.cuda.choose import rank_ids

_TILE_ELEMENTS = 2**24
"""Logits looked at together: temporaries stay a few hundred megabytes, however long the prompt."""


def device_logprobs(logits: Tensor, target_ids: Tensor, num_top: int) -> Tensor:
    """What `read_logprobs` takes, float64 [rows, 2 + 3 n]; nothing waits for the device.

    logits: [rows, vocab] float32; target_ids: [rows] int64 on the same device; n is `num_top`, or
    all of a smaller vocabulary. A row: its target's log-probability and rank; the ids of the most
    likely tokens, in the order of ranks; their log-probabilities; their ranks.
    """
    num_top = min(num_top, logits.shape[1])
    num_rows = max(1, _TILE_ELEMENTS // logits.shape[1])
    tiles = zip(logits.split(num_rows), target_ids.split(num_rows), strict=True)
    return torch.cat([_tile_logprobs(*tile, num_top) for tile in tiles])


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
