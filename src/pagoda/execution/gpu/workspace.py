"""What a step writes between its kernels: one memory for all layers, used again step after step.

hidden  | what a product reads: the stream, normed               read by qkv and by gate_up
delta   | what a layer's half adds to the stream                 written by o and by down
arena   | qkv, query, attended |  in the one half of a layer,
        | gate_up, gated       |  in the other
last    | hidden of the rows whose logits are wanted
partial | what attention has seen of each split                  merged by the same attention
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagoda.execution.gpu.upload import aligned
from pagoda.kernels.gpu.decode_attention import decode_parts
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.prefill_tiling import PREFILL_PARTS, AttentionKind
from pagoda.models.decoder import AttentionSpec, DecoderLayer, DecoderSpec


class LayerShape(NamedTuple):
    """What decides how large a layer's activations are."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int

    @classmethod
    def of(cls, layer: DecoderLayer) -> LayerShape:
        attention = layer.attention
        return cls(
            attention.num_heads, attention.num_kv_heads, attention.head_dim,
            layer.mlp.intermediate_size,
        )  # fmt: skip

    @property
    def group_size(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim


class LayerMemory(NamedTuple):
    """One layer's part, for T rows; the weights' dtype but for `partial`."""

    qkv: torch.Tensor
    """[T, (Hq + 2 Hkv) * D]"""
    query: torch.Tensor
    """[T, Hq, D], normed and rotated"""
    attended: torch.Tensor
    """[T, Hq, D]"""
    gate_up: torch.Tensor
    """[T, 2 I]; in the same memory as the three before"""
    gated: torch.Tensor
    """[T, I]; likewise"""
    partial: PartialSums
    """What attention has of each split: decode first, and when it is done prefill"""


class Workspace:
    """Memory for steps of up to `num_tokens` tokens of up to `num_sequences` sequences, and for
    up to `num_logit_rows` rows of logits.

    It is made whole at once: how much a step takes does not depend on what came before it.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        dtype: torch.dtype,
        num_tokens: int,
        num_sequences: int,
        num_logit_rows: int,
        device: torch.device,
    ) -> None:
        self.num_tokens = num_tokens
        self.num_sequences = num_sequences
        self.num_logit_rows = num_logit_rows
        self._dtype = dtype
        self._shapes = tuple(dict.fromkeys(LayerShape.of(layer) for layer in spec.layers))
        halves = [half for shape in self._shapes for half in _halves(shape)]
        size = max(_bytes(widths, num_tokens, dtype) for widths in halves)
        self._arena = torch.empty(size, dtype=torch.uint8, device=device)
        self._stream = torch.empty(
            (num_tokens, spec.hidden_size), dtype=torch.float32, device=device
        )
        self._hidden = torch.empty_like(self._stream, dtype=dtype)
        self._delta = torch.empty_like(self._hidden)
        self._last = self._hidden.new_empty((num_logit_rows, spec.hidden_size))
        self._logits = self._stream.new_empty((num_logit_rows, spec.vocab_size))
        head_dims = {shape.head_dim for shape in self._shapes}
        num_parts = decode_parts(num_sequences, max(shape.num_heads for shape in self._shapes))
        self._partial = {
            head_dim: PartialSums.of(max(num_parts, PREFILL_PARTS), head_dim, device)
            for head_dim in head_dims
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
        attention, feed_forward = _halves(shape)
        qkv, query, attended = self._views(attention, count)
        gate_up, gated = self._views(feed_forward, count)
        heads = (count, shape.num_heads, shape.head_dim)
        partial = self._partial[shape.head_dim]
        return LayerMemory(qkv, query.view(heads), attended.view(heads), gate_up, gated, partial)

    def _views(self, widths: tuple[int, ...], count: int) -> list[torch.Tensor]:
        views, start = [], 0
        for width in widths:
            end = start + count * width * self._dtype.itemsize
            views.append(self._arena[start:end].view(self._dtype).view(count, width))
            start = aligned(end)
        return views


def attention_kind(attention: AttentionSpec) -> AttentionKind:
    """What decides how its rows are cut into tiles."""
    return AttentionKind(attention.num_heads, attention.num_kv_heads, attention.sliding_window)


def _halves(shape: LayerShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Widths of what is alive together: in attention, and in the feed-forward part."""
    inner = shape.intermediate_size
    return (shape.qkv_width, shape.query_width, shape.query_width), (2 * inner, inner)


def _bytes(widths: tuple[int, ...], num_rows: int, dtype: torch.dtype) -> int:
    return sum(aligned(width * num_rows * dtype.itemsize) for width in widths)
