"""The activations of one step, used by every layer in turn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from numpy.typing import NDArray

from pagoda.execution.batch import Batch
from pagoda.execution.linear import padded_rows
from pagoda.execution.plan import AttentionPlan
from pagoda.storage.kv_storage import as_array


class Buffer(NamedTuple):
    """One activation, seen twice."""

    padded: torch.Tensor
    """[padded rows, width], what matrix products take; rows past the batch's are zero or stale."""
    tensor: torch.Tensor
    """[num_tokens, width], the batch's rows of it."""
    array: NDArray
    """The same as `tensor`; bfloat16 as uint16."""


class Workspace:
    """The batch, its attention plan and the buffers of one forward pass."""

    def __init__(
        self, batch: Batch, plan: AttentionPlan, stream: torch.Tensor, dtype: torch.dtype
    ) -> None:
        """`stream`: [num_tokens, hidden_size] float32, the embedded tokens; the layers change it."""
        self.batch = batch
        self.plan = plan
        self.dtype = dtype
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
