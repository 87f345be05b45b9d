"""The launches of one step, whatever its batch: they wait for nothing, and allocate nothing.

But on ROCm: logits, those of routers too, are rounded there on their way, in memory taken for that
(see `product`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagoda.execution.gpu.experts import Experts
from pagoda.execution.gpu.group_inputs import Sight
from pagoda.execution.gpu.grouped_attention import GroupedAttention
from pagoda.execution.gpu.inputs import StepInputs
from pagoda.execution.gpu.latent_attention import LatentAttention
from pagoda.execution.gpu.layer_attention import LayerAttention, Rotation
from pagoda.execution.gpu.layer_codes import layer_codes
from pagoda.execution.gpu.product import product, product_in_float32
from pagoda.execution.gpu.workspace import LayerMemory, Workspace
from pagoda.execution.rope import RotaryTables
from pagoda.kernels.gpu.activation import apply_activation, apply_gate
from pagoda.kernels.gpu.code_form import PageCodes
from pagoda.kernels.gpu.embed import embed
from pagoda.kernels.gpu.head_norms import HeadNorms
from pagoda.kernels.gpu.latent_form import LatentForm
from pagoda.kernels.gpu.logits import adjust_logits
from pagoda.kernels.gpu.norm import RowNorm, add_and_norm, norm_rows
from pagoda.kernels.gpu.prefill_tiling import AttentionKind
from pagoda.models.decoder import (
    DecoderLayer,
    DecoderSpec,
    ExpertsSpec,
    LatentAttentionSpec,
    NormSpec,
    QKNorm,
)
from pagoda.models.weights import DecoderWeights, LayerWeights
from pagoda.sizing.gpu_step import LayerShape, layer_shape
from pagoda.storage.gpu_storage import GPULayer, GPUStorage


class _Layer(NamedTuple):
    """One layer, and what its launches need."""

    shape: LayerShape
    spec: DecoderLayer
    attention: LayerAttention
    weights: LayerWeights[torch.Tensor]
    experts: Experts | None
    """None: a plain feed-forward part"""
    next_norm: torch.Tensor | None
    """[h], of what the next layer takes, or the final one; None: the stream goes on as it is"""

    def feed_forward(self, delta: torch.Tensor, hidden: torch.Tensor, memory: LayerMemory) -> None:
        """Write to delta what the feed-forward part makes of hidden: [T, h]."""
        weights = self.weights
        if self.experts is not None:
            self.experts.run(delta, hidden, memory)
            return
        assert weights.down is not None
        activation = self.spec.mlp.activation.value
        if weights.gate_up is not None:
            product(memory.gate_up, hidden, weights.gate_up, weights.gate_up_bias)
            apply_gate(memory.gated, memory.gate_up, activation)
        else:
            assert weights.up is not None
            product(memory.gate_up, hidden, weights.up, weights.up_bias)
            apply_activation(memory.gated, memory.gate_up, activation)
        product(delta, memory.gated, weights.down, weights.down_bias)


class Decoder:
    """A decoder on a device.

    `max_model_len` is the longest sequence, in tokens; `sights` are those of the cache's groups.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights[torch.Tensor],
        storage: GPUStorage,
        max_model_len: int,
        sights: Sequence[Sight],
    ) -> None:
        self._spec = spec
        self._weights = weights
        norm = spec.norm
        self._norm = RowNorm(norm.eps, norm.is_centred, norm.weight_offset, norm.is_shifted)
        device, made_for = weights.embedding.device, spec.max_position_embeddings
        ropes = {
            rope: _on_device(RotaryTables.of(rope, max_model_len, made_for), device)
            for rope in {layer.attention.rope for layer in spec.layers}
        }
        norms = [layer.attention_norm for layer in weights.layers]
        self._first_norm, *next_norms = [*norms, weights.final_norm]
        codes = layer_codes(storage, device)
        groups = storage.spec.group_of_layers
        layers = zip(
            spec.layers, groups, weights.layers, storage.layers, codes, next_norms, strict=True
        )
        self._layers = [
            _Layer(
                layer_shape(layer, sees_sinks=sights[group].has_sinks), layer,
                _attention(
                    layer, norm, layer_weights, group, sights[group], kept, own_codes,
                    ropes[layer.attention.rope],
                ),
                layer_weights, _experts(layer, layer_weights), next_norm,
            )
            for layer, group, layer_weights, kept, own_codes, next_norm in layers
        ]  # fmt: skip

    @property
    def shapes(self) -> list[LayerShape]:
        """Of all layers."""
        return [layer.shape for layer in self._layers]

    @property
    def kinds(self) -> list[AttentionKind]:
        """Of all layers."""
        return [layer.attention.kind for layer in self._layers]

    def run(
        self, inputs: StepInputs, drawn: torch.Tensor, workspace: Workspace, logits: torch.Tensor
    ) -> None:
        """Launch a step: K and V of its tokens go to their slots, and logits to `logits`.

        drawn: [any number] int64, the tokens that the step before has drawn. logits:
        [num_logit_rows, vocab] float32.
        """
        count = inputs.num_tokens
        stream, hidden = workspace.stream(count), workspace.hidden(count)
        delta, memories = workspace.delta(count), workspace.layers(count)
        embed(
            stream, self._weights.embedding, inputs.token_ids, inputs.takes_drawn,
            inputs.drawn_places, drawn, self._spec.embedding_scale,
        )  # fmt: skip
        norm_rows(hidden, stream, self._first_norm, self._norm)
        for layer in self._layers:
            memory, weights, spec = memories[layer.shape], layer.weights, layer.spec
            attended = layer.attention.run(inputs, hidden, memory)
            product(delta, attended.flatten(1), weights.o, weights.o_bias)
            if spec.norms.is_parallel and weights.mlp_norm is not None:
                norm_rows(hidden, stream, weights.mlp_norm, self._norm)
            add_and_norm(
                None if spec.norms.is_parallel else hidden, stream, delta, weights.mlp_norm,
                self._norm, weights.attention_output_norm, spec.residual_scale,
            )  # fmt: skip
            layer.feed_forward(delta, hidden, memory)
            add_and_norm(
                hidden, stream, delta, layer.next_norm,
                self._norm, weights.mlp_output_norm, spec.residual_scale,
            )  # fmt: skip
        if len(logits):
            self._project(inputs, hidden, workspace, logits)

    def _project(
        self, inputs: StepInputs, hidden: torch.Tensor, workspace: Workspace, logits: torch.Tensor
    ) -> None:
        if inputs.logit_rows is not None:
            last = workspace.last(len(logits))
            hidden = torch.index_select(hidden, 0, inputs.logit_rows, out=last)
        product_in_float32(logits, hidden, self._weights.lm_head)
        if self._weights.logit_bias is not None:
            logits.add_(self._weights.logit_bias)
        adjust_logits(logits, self._spec.logit_scale, self._spec.logit_cap)


def _on_device(tables: RotaryTables, device: torch.device) -> Rotation:
    return Rotation(
        torch.from_numpy(tables.cosines).to(device),
        torch.from_numpy(tables.sines).to(device),
    )


def _experts(layer: DecoderLayer, weights: LayerWeights[torch.Tensor]) -> Experts | None:
    if not isinstance(layer.mlp, ExpertsSpec):
        return None
    assert weights.experts is not None
    return Experts.of(layer.mlp, weights.experts)


def _attention(
    layer: DecoderLayer, norm: NormSpec, weights: LayerWeights[torch.Tensor], group: int,
    sight: Sight, kept: GPULayer, codes: PageCodes | None, rotation: Rotation,
) -> LayerAttention:  # fmt: skip
    """Of a layer whose part of the cache is `kept`, in that group."""
    spec = layer.attention
    if isinstance(spec, LatentAttentionSpec):
        kind = sight.of_heads(spec.num_heads, 1)
        form = None
        if kept.latent is not None:
            form = LatentForm.of(kept.latent, kept.block_size, kept.blocks.shape[1])
        return LatentAttention(spec, group, kind, weights, kept.blocks, form, rotation)
    of_rows = spec.qk_norm is QKNorm.ROW
    norms = HeadNorms(weights.q_norm, weights.k_norm, norm.eps, norm.weight_offset, of_rows)
    kind = sight.of_heads(spec.num_heads, spec.num_kv_heads)
    return GroupedAttention(spec, group, kind, weights, kept.blocks, codes, rotation, norms)
