"""What the rows of tables of layers have in common, whatever their attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from pagoda.execution.cpu.addresses import LOG2_E, Addresses, address_of, height_of
from pagoda.execution.cpu.expert_table import expert_fields
from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.execution.cpu.panel_weights import PanelLayer
from pagoda.execution.rope import RotaryTables
from pagoda.kernels.cpu.decoder import LayerFields, Routines, Widths, routines
from pagoda.kernels.cpu.sums import gate_routine
from pagoda.models.decoder import DecoderLayer, ExpertsSpec, MLPSpec, NormSpec, RopeSpec
from pagoda.storage.cpu_storage import CPULayer

Ropes = Mapping[RopeSpec | None, RotaryTables]


class PlacedLayer(NamedTuple):
    """One layer, and where it lies."""

    spec: DecoderLayer
    weights: PanelLayer
    storage: CPULayer
    group: int


def adds_later(layer: DecoderLayer) -> bool:
    """Whether what the layer adds to the stream is normed or scaled first."""
    norms = layer.norms
    return norms.attention_output or norms.mlp_output or layer.residual_scale != 1.0


def widths_of(placed: PlacedLayer, dtype: torch.dtype, cache_size: int) -> Widths:
    """Numbers of its rows; cache_size: bytes of a number in the cache."""
    weights = placed.weights
    return Widths(
        hidden=weights.o.shape[0],
        qkv=weights.qkv.shape[0],
        attended=weights.o.shape[1],
        inner=_inner_width(placed.spec),
        weight_size=dtype.itemsize,
        cache_size=cache_size,
    )


def layer_routines(mlp: MLPSpec | ExpertsSpec, norm: NormSpec, *, is_paired: bool) -> Routines:
    """What layers of such a feed-forward part call; is_paired: weights are bfloat16."""
    is_gated = not isinstance(mlp, MLPSpec) or mlp.is_gated
    activation = mlp.activation.value
    return routines(is_paired, norm.is_centred, activation, norm.is_shifted, is_gated)


def _inner_width(layer: DecoderLayer) -> int:
    """The widest row within the feed-forward part that all rows have."""
    mlp = layer.mlp
    if isinstance(mlp, MLPSpec):
        return mlp.intermediate_size
    return 0 if mlp.shared is None else mlp.shared.intermediate_size


def layer_fields(
    placed: PlacedLayer,
    ropes: Ropes,
    norm: NormSpec,
    dtype: torch.dtype,
    kept: Addresses,
    **of_attention: Any,
) -> LayerFields:
    """One layer's row of the table, with those fields that depend on its attention."""
    weights, spec = placed.weights, placed.spec
    rope, offset = ropes[spec.attention.rope], norm.weight_offset
    first, second = _first_weights(weights)
    first_bias, second_bias = weights.up_bias, None
    if weights.gate_up_bias is not None:
        first_bias, second_bias = weights.gate_up_bias.chunk(2)
    return LayerFields(
        qkv=weights.qkv.address,
        o=weights.o.address,
        gate=address_of(first),
        up=address_of(second),
        down=address_of(weights.down),
        attention_norm=kept.norm(weights.attention_norm, offset),
        qkv_bias=kept.bias(weights.qkv_bias, height_of(weights.qkv)),
        o_bias=kept.bias(weights.o_bias, height_of(weights.o)),
        attention_output_norm=kept.norm(weights.attention_output_norm, offset),
        mlp_norm=kept.norm(weights.mlp_norm, offset),
        is_parallel=int(spec.norms.is_parallel),
        gate_bias=kept.bias(first_bias, height_of(first)),
        up_bias=kept.bias(second_bias, height_of(second)),
        down_bias=kept.bias(weights.down_bias, height_of(weights.down)),
        mlp_output_norm=kept.norm(weights.mlp_output_norm, offset),
        residual_scale=kept.one(spec.residual_scale) if adds_later(spec) else 0,
        cosines=kept.of(rope.cosines),
        sines=kept.of(rope.sines),
        half=rope.cosines.shape[1],
        blocks=placed.storage.array.ctypes.data,
        scale=kept.one(spec.attention.scale * LOG2_E),
        group=placed.group,
        experts=_experts(placed, dtype, kept),
        **of_attention,
    )


def _first_weights(weights: PanelLayer) -> tuple[PanelMatrix | None, PanelMatrix | None]:
    """What the feed-forward part reads first, and what beside it: a router, gate and up, or up."""
    if weights.experts is not None:
        return weights.experts.router, None
    return (weights.up, None) if weights.gate is None else (weights.gate, weights.up)


def _experts(placed: PlacedLayer, dtype: torch.dtype, kept: Addresses) -> int:
    """Address of what a layer's experts are; 0 where it has none."""
    spec, weights = placed.spec.mlp, placed.weights.experts
    if weights is None:
        return 0
    assert isinstance(spec, ExpertsSpec)
    gate = gate_routine(dtype == torch.bfloat16, spec.activation.value).address
    return kept.of(expert_fields(spec, weights, dtype, gate, kept))
