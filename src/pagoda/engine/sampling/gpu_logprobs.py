"""Log-probabilities of tokens by logits that lie on a GPU: `logprobs`, without waiting."""

from __future__ import annotations

import torch
from torch import Tensor

from pagoda.engine.sampling.logprobs import told
from pagoda.engine.sampling.tiles import tiles
from pagoda.kernels.gpu.choose import rank_ids

_TILE_ELEMENTS = 2**24
"""Logits looked at together: temporaries stay a few hundred megabytes, however long the prompt."""


def gpu_logprobs(logits: Tensor, rows: Tensor | None, target_ids: Tensor, num_top: int) -> Tensor:
    """`logprobs.told` of some rows; nothing waits for the device.

    logits: [any, vocab] float32; rows: [n] int64, those that are asked for, or None for the first
    n; target_ids: [n] int64; `num_top` tokens are told, or all of a smaller vocabulary.
    """
    num_top = min(num_top, logits.shape[1])
    found = []
    for own in tiles(len(target_ids), logits.shape[1], _TILE_ELEMENTS):
        values = logits[own] if rows is None else logits.index_select(0, rows[own])
        targets = target_ids[own, None]
        ranks = 1 + (values > values.gather(1, targets)).sum(1, keepdim=True)
        most_likely = rank_ids(values, num_top) if num_top else targets[:, :0]
        found.append(told(values, targets, ranks, most_likely))
    return torch.cat(found)
