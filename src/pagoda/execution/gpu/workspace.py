"""What a step writes between its kernels: one memory for all layers, used again step after step.

hidden  | what a product reads: the stream, normed where it is   read by qkv and by gate_up
delta   | what a layer's half adds to the stream                 written by o and by down
arena   | qkv, query, attended |  in the one half of a layer, and queries for sinks,
        | gate_up, gated       |  in the other
last    | hidden of the rows whose logits are wanted
partial | what attention has seen of each split                  merged by the same attention
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagoda.errors import UnsupportedModelError
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.models.decoder import AttentionSpec, DecoderLayer, DecoderSpec
from pagoda.sizing.alignment import aligned
from pagoda.sizing.gpu_step import LayerShape, ModelShape, WorkspaceSize


class LayerMemory(NamedTuple):
    """One layer's part, for T rows; the weights' dtype but for `partial`."""

    qkv: torch.Tensor
    """[T, (Hq + 2 Hkv) * D]"""
    query: torch.Tensor
    """[T, Hq, D], normed and rotated"""
    attended: torch.Tensor
    """[T, Hq, D]"""
    sink_query: torch.Tensor | None
    """As `query`, from where sinks are seen; None in layers that see none"""
    gate_up: torch.Tensor
    """[T, 2 I]; in the same memory as those before"""
    gated: torch.Tensor
    """[T, I]; likewise"""
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
            head_dim: PartialSums.of(size.num_parts, head_dim, device)
            for head_dim in {layer.head_dim for layer in shape.layers}
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
        attention, feed_forward = shape.halves
        qkv, *rows = self._views(attention, count)
        gate_up, gated = self._views(feed_forward, count)
        heads = (count, shape.num_heads, shape.head_dim)
        query, attended, *sink_query = (each.view(heads) for each in rows)
        partial = self._partial[shape.head_dim]
        own = sink_query[0] if shape.sees_sinks else None
        return LayerMemory(qkv, query, attended, own, gate_up, gated, partial)

    def _views(self, widths: tuple[int, ...], count: int) -> list[torch.Tensor]:
        views, start = [], 0
        for width in widths:
            end = start + count * width * self._dtype.itemsize
            views.append(self._arena[start:end].view(self._dtype).view(count, width))
            start = aligned(end)
        return views


def layer_shape(layer: DecoderLayer, *, sees_sinks: bool = False) -> LayerShape:
    """What of a layer decides how large its activations are."""
    attention = layer.attention
    if not isinstance(attention, AttentionSpec):
        raise UnsupportedModelError("attention", "latent attention", "not covered on a GPU")
    return LayerShape(
        attention.num_heads, attention.num_kv_heads, attention.head_dim,
        layer.mlp.intermediate_size, sees_sinks,
    )  # fmt: skip


def model_shape(
    spec: DecoderSpec, dtype: torch.dtype, layers: Sequence[LayerShape] | None = None
) -> ModelShape:
    """What of a model does. layers: the shape of each; None: such as see no sinks."""
    shapes = [layer_shape(layer) for layer in spec.layers] if layers is None else layers
    return ModelShape(
        spec.hidden_size, spec.vocab_size, tuple(dict.fromkeys(shapes)), dtype.itemsize
    )
