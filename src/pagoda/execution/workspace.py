"""The activations of one step, used by every layer in turn."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch

from pagoda.execution.batch import Batch
from pagoda.execution.linear import padded_rows
from pagoda.execution.plan import AttentionPlan, plan_attention
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention import split_tokens, tile_tokens
from pagoda.storage.kv_storage import as_array


class Buffer(NamedTuple):
    """One activation, seen twice."""

    padded: torch.Tensor
    """[padded rows, width], what matrix products take; rows past the batch's are zero or stale."""
    tensor: torch.Tensor
    """[num_tokens, width], the batch's rows of it."""
    array: Array
    """The same as `tensor`; bfloat16 as uint16."""


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
            rows = self.batch.num_tokens
            padded = torch.zeros(padded_rows(rows, self.dtype), width, dtype=self.dtype)
            tensor = padded[:rows]
            found = self._buffers[key] = Buffer(padded, tensor, as_array(tensor))
        return found

    def plan_attention(self, shape: HeadShape) -> tuple[AttentionPlan, Array]:
        """The plan for layers with such heads, and room for its parts, float32.

        The room is [num_parts, num_kv_heads, part_rows * group_size, head_dim + 2].
        """
        found = self._plans.get(shape)
        if found is None:
            plan = plan_attention(self.batch, self._split_tokens, tile_tokens(shape.group_size))
            rows = plan.part_rows * shape.group_size
            room = (plan.num_parts, shape.num_kv_heads, rows, shape.head_dim + 2)
            parts = np.empty(room, np.float32)
            found = self._plans[shape] = (plan, parts)
        return found
