"""What a step asks of a layer's attention, whatever that keeps in the cache."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from pagoda.execution.gpu.inputs import StepInputs
from pagoda.execution.gpu.workspace import LayerMemory
from pagoda.kernels.gpu.prefill_tiling import AttentionKind


class Rotation(NamedTuple):
    """Tables of angles."""

    cosines: torch.Tensor
    """[positions, half] float32"""
    sines: torch.Tensor
    """As `cosines`."""


class LayerAttention(Protocol):
    """Attention of one layer, with its weights and its part of the cache."""

    @property
    def kind(self) -> AttentionKind:
        """What decides how its rows are cut into tiles."""
        ...

    def run(self, inputs: StepInputs, hidden: torch.Tensor, memory: LayerMemory) -> torch.Tensor:
        """Store what the tokens leave in the cache; returns what they see, [T, heads, numbers].

        hidden: [T, h]. What is returned is in `memory`.
        """
        ...
