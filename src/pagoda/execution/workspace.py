"""The activations of one step, used by every layer in turn."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch

from pagoda.execution.batch import Batch
from pagoda.execution.buffer import Buffer
from pagoda.execution.plan import AttentionPlan, plan_attention
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention import split_tokens, tile_tokens
from pagoda.storage.kv_storage import as_array


class HeadShape(NamedTuple):
    """What layers must have in common to share a plan."""

    num_kv_heads: int
    group_size: int
    """Query heads to a KV head."""
    head_dim: int


class Workspace:
    """The batch, its attention plan and the buffers of one forward pass."""

    def __init__(
        self, batch: Batch, stream: torch.Tensor, dtype: torch.dtype, block_size: int
    ) -> None:
        """`stream`: [num_tokens, hidden_size] float32, the embedded tokens; layers change it."""
        self.batch = batch
        self._split_tokens = split_tokens(block_size)
        self._plans: dict[HeadShape, tuple[AttentionPlan, Array]] = {}
        self.dtype = dtype
        self.num_threads = numba.get_num_threads()
        self.stream = stream
        self.stream_array = as_array(stream)
        self._buffers: dict[tuple[str, int], Buffer] = {}
        hidden_size = stream.shape[1]
        self.hidden = self.buffer("hidden", hidden_size)
        """What a projection reads: the stream after its norm."""
        self.delta = self.buffer("delta", hidden_size)
        """What the next norm adds to the stream first."""

    def buffer(self, name: str, width: int) -> Buffer:
        """The buffer of that name and width, made on first use and then shared by the layers."""
        key = (name, width)
        found = self._buffers.get(key)
        if found is None:
            found = Buffer.zeros(self.batch.num_tokens, width, self.dtype)
            self._buffers[key] = found
        return found

    def plan_attention(self, shape: HeadShape) -> tuple[AttentionPlan, Array]:
        """The plan for layers with such heads, and room for its parts, float32.

        The room is [num_parts, part_rows * num_heads, head_dim + 2].
        """
        found = self._plans.get(shape)
        if found is None:
            plan = plan_attention(self.batch, self._split_tokens, tile_tokens(shape.group_size))
            rows = plan.part_rows * shape.num_kv_heads * shape.group_size
            parts = np.empty((plan.num_parts, rows, shape.head_dim + 2), np.float32)
            found = self._plans[shape] = (plan, parts)
        return found
