"""Attention of a layer that keeps keys and values: launches from its first product on.

qkv | norm, rotate and store | decode, merge | prefill, merge | turn, where a codec asks for it
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from pagoda.execution.gpu.inputs import StepInputs
from pagoda.execution.gpu.layer_attention import Rotation
from pagoda.execution.gpu.product import product
from pagoda.execution.gpu.workspace import LayerMemory
from pagoda.kernels.gpu.code_form import PageCodes
from pagoda.kernels.gpu.coded_rotary import rotate_and_encode
from pagoda.kernels.gpu.decode_attention import decode_attention
from pagoda.kernels.gpu.head_norms import HeadNorms
from pagoda.kernels.gpu.prefill_attention import prefill_attention
from pagoda.kernels.gpu.prefill_tiling import AttentionKind
from pagoda.kernels.gpu.rotary import rotate_and_store
from pagoda.kernels.gpu.turn import turn_heads
from pagoda.kernels.gpu.windows import SinkQueries, Windows
from pagoda.models.decoder import AttentionSpec
from pagoda.models.weights import LayerWeights


class GroupedMemory(NamedTuple):
    """As `GroupedShape.arrays` has them."""

    qkv: torch.Tensor
    """[T, (Hq + 2 Hkv) * D]"""
    query: torch.Tensor
    """[T, Hq, D], normed and rotated"""
    attended: torch.Tensor
    """[T, Hq, D]"""
    sink_query: torch.Tensor | None = None
    """As `query`, from where sinks are seen; None in layers that see none"""


class GroupedAttention(NamedTuple):
    """See `LayerAttention`."""

    spec: AttentionSpec
    group: int
    """Of the cache."""
    kind: AttentionKind
    weights: LayerWeights[torch.Tensor]
    blocks: torch.Tensor
    """[num_blocks, 2, Hkv, block_size, D], or [num_blocks, bytes] of codes"""
    codes: PageCodes | None
    """None: plain numbers"""
    rotation: Rotation
    head_norms: HeadNorms

    def run(self, inputs: StepInputs, hidden: torch.Tensor, memory: LayerMemory) -> torch.Tensor:
        """See `LayerAttention`."""
        own, weights = GroupedMemory(*memory.attention), self.weights
        product(own.qkv, hidden, weights.qkv, weights.qkv_bias)
        windows = self._store(inputs, own)
        tables, softmax = inputs.groups[self.group].block_tables, self._softmax
        if len(inputs.decode_rows):
            decode_attention(
                own.attended, own.query, self.blocks, tables, inputs.context_lens,
                inputs.decode_rows, inputs.decode_sequences, self.spec.scale, windows,
                memory.partial, self.codes, **softmax,
            )  # fmt: skip
        tiling = inputs.prefill.get(self.kind)
        if tiling is not None:
            prefill_attention(
                own.attended, own.query, self.blocks, tables, tiling, self.spec.scale, windows,
                memory.partial, self.codes, **softmax,
            )  # fmt: skip
        if self.codes is not None and self.codes.output_turn is not None:
            turn_heads(own.attended, self.codes.output_turn)
        return own.attended

    def _store(self, inputs: StepInputs, memory: GroupedMemory) -> Windows | None:
        """From qkv to queries and the cache; returns what rows see."""
        own = inputs.groups[self.group]
        sinks = windows = None
        if memory.sink_query is not None and own.sink_positions is not None:
            sinks = SinkQueries(memory.sink_query, own.sink_positions)
        if own.windows is not None:
            windows = Windows(own.windows, memory.sink_query)
        rotation = (
            memory.query, memory.qkv, self.blocks, inputs.positions, own.slot_mapping,
            *self.rotation, self.head_norms,
        )  # fmt: skip
        if self.codes is None:
            rotate_and_store(*rotation, sinks)
        else:
            rotate_and_encode(*rotation, self.codes, sinks)
        return windows

    @property
    def _softmax(self) -> dict[str, Any]:
        """What attention does to scores beside scaling them."""
        return {"logit_cap": self.spec.logit_cap, "sink_logits": self.weights.sink_logits}
