"""What the rows of tables of layers have in common, whatever their attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from pagoda.execution.cpu.expert_table import expert_fields
from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.execution.cpu.panel_weights import PanelLayer
from pagoda.execution.rope import RotaryTables
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.decoder import LayerFields
from pagoda.kernels.cpu.sums import gate_routine
from pagoda.models.decoder import DecoderLayer, ExpertsSpec, MLPSpec, NormSpec, RopeSpec
from pagoda.storage.cpu_storage import CPULayer

LOG2_E = 1.4426950408889634

Ropes = Mapping[RopeSpec | None, RotaryTables]


class Part(NamedTuple):
    """One layer."""

    spec: DecoderLayer
    weights: PanelLayer
    storage: CPULayer
    group: int


class Addresses:
    """Arrays that tables have addresses of and nobody else holds."""

    def __init__(self) -> None:
        self.kept: list[Array] = []

    def of(self, values: Array) -> int:
        self.kept.append(values)
        return int(values.ctypes.data)

    def one(self, number: float) -> int:
        return self.of(np.array([number], np.float32))

    def floats(self, values: torch.Tensor) -> int:
        return self.of(values.float().numpy())

    def bias(self, values: torch.Tensor | None, weight: PanelMatrix | None) -> int:
        """Zeros where there is none, 0 where there is no weight either."""
        if weight is None:
            return 0
        return self.floats(torch.zeros(weight.shape[0]) if values is None else values)

    def norm(self, values: torch.Tensor | None, offset: float = 0.0) -> int:
        """0 where there is none."""
        return 0 if values is None else self.of((values.float() + offset).numpy())

    def logits(self, values: Sequence[float]) -> int:
        """In powers of two."""
        return self.of(np.array(values, np.float32) * np.float32(LOG2_E))


def address_of(weight: PanelMatrix | None) -> int:
    """Of its table of panels; 0 where there is none."""
    return 0 if weight is None else weight.address


def adds_later(layer: DecoderLayer) -> bool:
    """Whether what the layer adds to the stream is normed or scaled first."""
    norms = layer.norms
    return norms.attention_output or norms.mlp_output or layer.residual_scale != 1.0


def inner_width(layer: DecoderLayer) -> int:
    """The widest row within the feed-forward part that all rows have."""
    mlp = layer.mlp
    if isinstance(mlp, MLPSpec):
        return mlp.intermediate_size
    return 0 if mlp.shared is None else mlp.shared.intermediate_size


def layer_fields(
    part: Part,
    ropes: Ropes,
    norm: NormSpec,
    dtype: torch.dtype,
    kept: Addresses,
    **of_attention: Any,
) -> LayerFields:
    """One layer's row of the table, with those fields that depend on its attention."""
    weights, spec = part.weights, part.spec
    rope, offset = ropes[spec.attention.rope], norm.weight_offset
    gate_bias, up_bias = (None, None)
    if weights.gate_up_bias is not None:
        gate_bias, up_bias = weights.gate_up_bias.chunk(2)
    return LayerFields(
        qkv=weights.qkv.address,
        o=weights.o.address,
        gate=address_of(weights.gate if weights.experts is None else weights.experts.router),
        up=address_of(weights.up),
        down=address_of(weights.down),
        attention_norm=kept.norm(weights.attention_norm, offset),
        qkv_bias=kept.bias(weights.qkv_bias, weights.qkv),
        o_bias=kept.bias(weights.o_bias, weights.o),
        attention_output_norm=kept.norm(weights.attention_output_norm, offset),
        mlp_norm=kept.norm(weights.mlp_norm, offset),
        is_parallel=int(spec.norms.is_parallel),
        gate_bias=kept.bias(gate_bias, weights.gate),
        up_bias=kept.bias(up_bias, weights.up),
        down_bias=kept.bias(weights.down_bias, weights.down),
        mlp_output_norm=kept.norm(weights.mlp_output_norm, offset),
        residual_scale=kept.one(spec.residual_scale) if adds_later(spec) else 0,
        cosines=kept.of(rope.cosines),
        sines=kept.of(rope.sines),
        half=rope.cosines.shape[1],
        blocks=part.storage.array.ctypes.data,
        scale=kept.one(spec.attention.scale * LOG2_E),
        group=part.group,
        experts=_experts(part, dtype, kept),
        **of_attention,
    )


def _experts(part: Part, dtype: torch.dtype, kept: Addresses) -> int:
    """Address of what a layer's experts are; 0 where it has none."""
    spec, weights = part.spec.mlp, part.weights.experts
    if weights is None:
        return 0
    assert isinstance(spec, ExpertsSpec)
    gate = gate_routine(dtype == torch.bfloat16, spec.activation.value).address
    return int(expert_fields(spec, weights, dtype, gate, kept.kept).ctypes.data)
