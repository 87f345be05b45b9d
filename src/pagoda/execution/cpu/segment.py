"""A run of layers of one shape, as one compiled function takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from pagoda.execution.cpu.expert_table import expert_fields
from pagoda.execution.cpu.layer_codes import code_fields, coded_form, fits, page_form
from pagoda.execution.cpu.panel_matrix import PanelMatrix
from pagoda.execution.cpu.panel_weights import PanelLayer, PanelWeights
from pagoda.execution.rope import RotaryTables
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention import RowRoutines, row_routines
from pagoda.kernels.cpu.decoder import LayerFields, Routines, Widths, routines
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.multiply import MEMORY_BYTES, ProductRoutines, product_routines
from pagoda.kernels.cpu.page_product import HeadRoutines, head_routines
from pagoda.kernels.cpu.rotary import MOST_ROWS
from pagoda.kernels.cpu.sums import gate_routine
from pagoda.kernels.cpu.write import WriteRoutines, write_routines
from pagoda.kernels.page_layout import PageLayout
from pagoda.models.decoder import (
    DecoderLayer,
    DecoderSpec,
    ExpertsSpec,
    MLPSpec,
    NormSpec,
    QKNorm,
    RopeSpec,
)
from pagoda.storage.cpu_storage import CPULayer, CPUStorage

_LOG2_E = 1.4426950408889634

Ropes = Mapping[RopeSpec | None, RotaryTables]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive layers and the code for them."""

    table: Array
    """[layers, `ROW_FIELDS`] int64"""
    shape: HeadShape
    widths: Widths
    layout: PageLayout
    routines: Routines
    panels: ProductRoutines
    write: WriteRoutines
    heads: HeadRoutines
    rows: RowRoutines
    groups: frozenset[int]
    """Of the cache, that its layers are of."""
    kept: tuple[Array, ...]
    """What the table has addresses of and nobody else holds."""


class _Part(NamedTuple):
    """One layer."""

    spec: DecoderLayer
    weights: PanelLayer
    storage: CPULayer
    group: int


def segments(
    spec: DecoderSpec, weights: PanelWeights, storage: CPUStorage, ropes: Ropes
) -> tuple[Segment, ...]:
    """All layers in order, together where they have the same shape."""
    groups = storage.spec.group_of_layers
    layers = zip(spec.layers, weights.layers, storage.layers, groups, strict=True)
    parts = [_Part(*layer) for layer in layers]
    dtype = weights.dtype
    return tuple(_segment(list(run), ropes, dtype, spec.norm) for _, run in groupby(parts, _shape))


def adds_later(layer: DecoderLayer) -> bool:
    """Whether what the layer adds to the stream is normed or scaled first."""
    norms = layer.norms
    return norms.attention_output or norms.mlp_output or layer.residual_scale != 1.0


def _shape(part: _Part) -> tuple[object, ...]:
    attention = part.spec.attention
    return (
        attention.num_heads, attention.num_kv_heads, attention.head_dim,
        part.spec.mlp, part.storage.array.dtype,
        coded_form(part.storage), part.storage.layout,
    )  # fmt: skip


def _segment(parts: Sequence[_Part], ropes: Ropes, dtype: torch.dtype, norm: NormSpec) -> Segment:
    attention, storage, weights = parts[0].spec.attention, parts[0].storage, parts[0].weights
    num_kv_heads = attention.num_kv_heads
    group_size = attention.num_heads // num_kv_heads
    shape = HeadShape(num_kv_heads, group_size, attention.head_dim, storage.block_size)
    assert MOST_ROWS * attention.head_dim * 4 <= MEMORY_BYTES, "what a codec works with has to fit"
    is_paired = dtype == torch.bfloat16
    form = page_form(storage, is_paired=is_paired)
    kept: list[Array] = []
    table = [
        [*_fields(part, ropes, norm, dtype, kept), *code_fields(part.storage, kept)]
        for part in parts
    ]
    return Segment(
        table=np.array(table, np.int64),
        shape=shape,
        widths=Widths(
            hidden=weights.qkv.shape[1],
            qkv=weights.qkv.shape[0],
            attended=weights.o.shape[1],
            inner=_inner(parts[0].spec),
            weight_size=dtype.itemsize,
            cache_size=form.item_size,
        ),
        layout=storage.layout,
        routines=routines(is_paired, norm.is_centred, parts[0].spec.mlp.activation.value),
        panels=product_routines(is_paired),
        write=write_routines(form, *fits(storage.codec)),
        heads=head_routines(form),
        rows=row_routines(form, is_paired),
        groups=frozenset(part.group for part in parts),
        kept=tuple(kept),
    )


def _inner(layer: DecoderLayer) -> int:
    """The widest row within the feed-forward part that all rows have."""
    mlp = layer.mlp
    if isinstance(mlp, MLPSpec):
        return mlp.intermediate_size
    return 0 if mlp.shared is None else mlp.shared.intermediate_size


def _fields(
    part: _Part, ropes: Ropes, spec: NormSpec, dtype: torch.dtype, kept: list[Array]
) -> LayerFields:
    """One layer's row of the table; what it has addresses of is added to `kept`."""

    def address(values: Array) -> int:
        kept.append(values)
        return int(values.ctypes.data)

    def one(number: float) -> int:
        return address(np.array([number], np.float32))

    def floats(values: torch.Tensor) -> int:
        return address(values.float().numpy())

    def bias(values: torch.Tensor | None, weight: PanelMatrix | None) -> int:
        if weight is None:
            return 0
        return floats(torch.zeros(weight.shape[0]) if values is None else values)

    def table(weight: PanelMatrix | None) -> int:
        return 0 if weight is None else weight.address

    def norm(values: torch.Tensor | None) -> int:
        return 0 if values is None else address((values.float() + spec.weight_offset).numpy())

    def logits(values: Sequence[float]) -> int:
        return address(np.array(values, np.float32) * np.float32(_LOG2_E))

    weights, attention = part.weights, part.spec.attention
    rope = ropes[attention.rope]
    gate_bias, up_bias = (None, None)
    if weights.gate_up_bias is not None:
        gate_bias, up_bias = weights.gate_up_bias.chunk(2)
    return LayerFields(
        qkv=weights.qkv.address,
        o=weights.o.address,
        gate=table(weights.gate if weights.experts is None else weights.experts.router),
        up=table(weights.up),
        down=table(weights.down),
        attention_norm=norm(weights.attention_norm),
        qkv_bias=bias(weights.qkv_bias, weights.qkv),
        q_norm=norm(weights.q_norm),
        k_norm=norm(weights.k_norm),
        norms_rows=int(attention.qk_norm is QKNorm.ROW),
        o_bias=bias(weights.o_bias, weights.o),
        attention_output_norm=norm(weights.attention_output_norm),
        mlp_norm=norm(weights.mlp_norm),
        is_parallel=int(part.spec.norms.is_parallel),
        gate_bias=bias(gate_bias, weights.gate),
        up_bias=bias(up_bias, weights.up),
        down_bias=bias(weights.down_bias, weights.down),
        mlp_output_norm=norm(weights.mlp_output_norm),
        residual_scale=one(part.spec.residual_scale) if adds_later(part.spec) else 0,
        cosines=address(rope.cosines),
        sines=address(rope.sines),
        half=rope.cosines.shape[1],
        blocks=part.storage.array.ctypes.data,
        scale=one(attention.scale * _LOG2_E),
        group=part.group,
        logit_cap=0 if attention.logit_cap is None else logits([attention.logit_cap]),
        sink_logits=0 if weights.sink_logits is None else logits(weights.sink_logits.tolist()),
        experts=_experts(part, dtype, kept),
    )


def _experts(part: _Part, dtype: torch.dtype, kept: list[Array]) -> int:
    """Address of what a layer's experts are; 0 where it has none."""
    spec, weights = part.spec.mlp, part.weights.experts
    if weights is None:
        return 0
    assert isinstance(spec, ExpertsSpec)
    gate = gate_routine(dtype == torch.bfloat16, spec.activation.value).address
    return int(expert_fields(spec, weights, dtype, gate, kept).ctypes.data)
