"""Log-probabilities of tokens by logits that lie on a GPU: `logprobs`, without waiting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda.engine.sampling.logprobs import Told
from pagoda.engine.sampling.tiles import tiles
from pagoda.kernels.gpu.choose import rank_ids

_TILE_ELEMENTS = 2**24
"""Logits looked at together: temporaries stay a few hundred megabytes, however long the prompt."""


def gpu_logprobs(logits: Tensor, rows: Tensor | None, target_ids: Tensor, num_top: int) -> Tensor:
    """What `unpack` takes, float64, for one copy; nothing waits for the device.

    logits: [any, vocab] float32; rows: [n] int64, those that are asked for, or None for the first
    n; target_ids: [n] int64; `num_top` tokens are told, or all of a smaller vocabulary.
    """
    num_top = min(num_top, logits.shape[1])
    found = []
    for own in tiles(len(target_ids), logits.shape[1], _TILE_ELEMENTS):
        values = logits[own] if rows is None else logits.index_select(0, rows[own])
        targets = target_ids[own, None]
        ranks = 1 + (values > values.gather(1, targets)).sum(1, keepdim=True)
        top_ids = rank_ids(values, num_top) if num_top else targets[:, :0]
        told = Told.of(values, targets, ranks, top_ids)
        found.append(torch.cat([column.double() for column in told], 1))
    return torch.cat(found)


def unpack(packed: NDArray[Any]) -> Told[NDArray[Any]]:
    """The columns that `gpu_logprobs` put side by side."""
    most = (packed.shape[1] - 2) // 3
    return Told(*np.split(packed, [1, 2, 2 + most, 2 + 2 * most], axis=1))
