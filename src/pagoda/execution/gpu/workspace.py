"""What a step writes between its kernels: one memory for all layers, used again step after step.

hidden  | what a product reads: the stream, normed where it is   read by qkv and by gate_up
delta   | what a layer's half adds to the stream         written by o and by down or by experts
arena   | what attention has between its kernels, as its shape says |  in the one half of a layer,
        | gate_up, gated |  in the other; and where rows go to experts, once that is done,
        | logits, chosen, weights, order, counts, tiles, gated, parts |
last    | hidden of the rows whose logits are wanted
partial | what attention has seen of each split                  merged by the same attention
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from pagoda.kernels.gpu.expert_rows import ExpertRows
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.models.decoder import DecoderSpec
from pagoda.sizing.alignment import aligned
from pagoda.sizing.gpu_step import (
    ExpertsShape,
    LayerShape,
    ModelShape,
    WorkspaceSize,
    layer_shape,
)

_EXPERT_DTYPES = (
    torch.float32, torch.int32, torch.float32, torch.int32, torch.int32, torch.int32,
)  # fmt: skip
"""Of `ExpertArrays`, but for the last two."""


class ExpertsMemory(NamedTuple):
    """What rows on their way through experts need; shapes are those of `ExpertArrays`."""

    logits: torch.Tensor
    chosen: torch.Tensor
    weights: torch.Tensor
    rows: ExpertRows
    gated: torch.Tensor
    parts: torch.Tensor


class LayerMemory(NamedTuple):
    """One layer's part, for T rows; the weights' dtype but for `partial`."""

    attention: tuple[torch.Tensor, ...]
    """[T, …] each, as `AttentionShape.arrays` has them"""
    gate_up: torch.Tensor
    """[T, 2 I], or [T, I] without a gate, of what every row goes through; in the same memory as
    those before"""
    gated: torch.Tensor
    """[T, I]; likewise"""
    experts: ExpertsMemory | None
    """In the same memory again; None in layers without experts"""
    partial: PartialSums
    """What attention has of each split: decode first, and when it is done prefill"""


class Workspace:
    """Memory for the largest step of a model, of exactly `size.size_bytes`.

    It is made whole at once: how much a step takes does not depend on what came before it.
    """

    def __init__(self, size: WorkspaceSize, dtype: torch.dtype, device: torch.device) -> None:
        shape, step = size.shape, size.step
        self.num_tokens, self.num_sequences, self.num_logit_rows = step
        self._dtype = dtype
        self._shapes = shape.layers
        self._arena = torch.empty(size.arena_bytes, dtype=torch.uint8, device=device)
        self._stream = torch.empty(
            (step.num_tokens, shape.hidden_size), dtype=torch.float32, device=device
        )
        self._hidden = torch.empty_like(self._stream, dtype=dtype)
        self._delta = torch.empty_like(self._hidden)
        self._last = self._hidden.new_empty((step.num_logit_rows, shape.hidden_size))
        self._logits = self._stream.new_empty((step.num_logit_rows, shape.vocab_size))
        self._partial = {
            dim: PartialSums.of(count, dim, device) for dim, count in size.num_parts.items()
        }

    def stream(self, count: int) -> torch.Tensor:
        """[count, h] float32, the residual stream"""
        return self._stream[:count]

    def hidden(self, count: int) -> torch.Tensor:
        """[count, h]"""
        return self._hidden[:count]

    def delta(self, count: int) -> torch.Tensor:
        """[count, h]"""
        return self._delta[:count]

    def last(self, count: int) -> torch.Tensor:
        """[count, h]"""
        return self._last[:count]

    def logits(self, count: int) -> torch.Tensor:
        """[count, vocab] float32"""
        return self._logits[:count]

    def layers(self, count: int) -> dict[LayerShape, LayerMemory]:
        """For `count` rows, of each shape of layer."""
        return {shape: self._of_layer(shape, count) for shape in self._shapes}

    def _of_layer(self, shape: LayerShape, count: int) -> LayerMemory:
        attention, feed_forward = (self._views(half, count) for half in shape.halves)
        gate_up, gated = feed_forward
        experts = None if shape.experts is None else self._of_experts(shape.experts, count)
        partial = self._partial[shape.attention.summed_dim]
        return LayerMemory(tuple(attention), gate_up, gated, experts, partial)

    def _of_experts(self, shape: ExpertsShape, count: int) -> ExpertsMemory:
        arrays = shape.arrays(count, self._hidden.shape[1])
        dtypes = (*_EXPERT_DTYPES, self._dtype, self._dtype)
        logits, chosen, weights, order, counts, tiles, gated, parts = self._arrays(
            zip(arrays, dtypes, strict=True)
        )
        rows = ExpertRows(order, counts, tiles, shape.num_used)
        return ExpertsMemory(logits, chosen, weights, rows, gated, parts)

    def _views(self, shapes: Iterable[tuple[int, ...]], count: int) -> list[torch.Tensor]:
        return self._arrays(((count, *shape), self._dtype) for shape in shapes)

    def _arrays(self, arrays: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> list[torch.Tensor]:
        """Of these shapes and dtypes, from the arena's start on."""
        views, start = [], 0
        for shape, dtype in arrays:
            end = start + math.prod(shape) * dtype.itemsize
            views.append(self._arena[start:end].view(dtype).view(shape))
            start = aligned(end)
        return views


def model_shape(
    spec: DecoderSpec, dtype: torch.dtype, layers: Sequence[LayerShape] | None = None
) -> ModelShape:
    """What of a model does. layers: the shape of each; None: such as see no sinks."""
    shapes = [layer_shape(layer) for layer in spec.layers] if layers is None else layers
    return ModelShape(
        spec.hidden_size, spec.vocab_size, tuple(dict.fromkeys(shapes)), dtype.itemsize
    )
