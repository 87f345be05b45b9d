"""Random rows of experts, sorted on the device."""

from __future__ import annotations

import numpy as np
import torch
from device_tensors import DEVICE

from pagoda.kernels.array import Array
from pagoda.kernels.gpu.expert_rows import ExpertRows, sort_rows
from pagoda.kernels.gpu.expert_tiles import most_tiles

SPOILED_TILE = [-7, 0, 9]
"""Which is not empty."""


def choose(rng: np.random.Generator, num_rows: int, num_experts: int, num_used: int) -> Array:
    """[rows, num_used], ascending; the first experts are chosen often."""
    keys = rng.random((num_rows, num_experts)) * (1 + np.arange(num_experts))
    chosen: Array = np.sort(np.argsort(keys, axis=1)[:, :num_used], axis=1).astype(np.int32)
    return chosen


def sorted_rows(chosen: Array, num_experts: int) -> ExpertRows:
    num_pairs = chosen.size

    def spoiled(*shape: int) -> torch.Tensor:
        return torch.full(shape, -7, dtype=torch.int32, device=DEVICE)

    tiles = torch.tensor([SPOILED_TILE] * most_tiles(num_pairs, num_experts), dtype=torch.int32)
    tiles = tiles.view(-1, 3).to(DEVICE)
    rows = ExpertRows(spoiled(num_pairs), spoiled(num_experts), tiles, chosen.shape[1])
    sort_rows(rows, torch.from_numpy(chosen).to(DEVICE))
    return rows
