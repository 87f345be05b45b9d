"""A run of layers of one shape, as one compiled function takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import numpy as np
import torch

from pagoda.execution.cpu.addresses import Addresses
from pagoda.execution.cpu.latent_segment import LatentSegment, latent_segment, latent_shape
from pagoda.execution.cpu.layer_codes import code_fields, coded_form, fits, page_form
from pagoda.execution.cpu.layer_table import (
    PlacedLayer,
    Ropes,
    layer_fields,
    layer_routines,
    widths_of,
)
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.cpu.workspace import Workspace
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention import RowRoutines, row_routines
from pagoda.kernels.cpu.decoder import (
    PHASES,
    LayerFields,
    Routines,
    Step,
    Widths,
    run_layers,
)
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.multiply import MEMORY_BYTES, ProductRoutines, product_routines
from pagoda.kernels.cpu.page_product import HeadRoutines, head_routines
from pagoda.kernels.cpu.rotary import MOST_ROWS
from pagoda.kernels.cpu.write import WriteRoutines, write_routines
from pagoda.kernels.page_layout import PageLayout
from pagoda.models.decoder import (
    AttentionSpec,
    DecoderSpec,
    LatentAttentionSpec,
    NormSpec,
    QKNorm,
)
from pagoda.storage.cpu_storage import CPUStorage


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive layers and the code for them."""

    num_phases: ClassVar[int] = PHASES

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

    @property
    def widest(self) -> int:
        """Numbers of the longest rows that a product takes."""
        return max(self.widths.hidden, self.widths.attended, self.widths.inner)

    @property
    def query_width(self) -> int:
        """Numbers of a row of queries, as they meet the cache."""
        return self.widths.attended

    def run(self, first: int, count: int, following: int, step: Step, workspace: Workspace) -> None:
        """Run `count` layers from number `first` on; following: the weight that is read next."""
        run_layers(
            self.table[first:].ctypes.data, count, following, step, self.widths, self.shape,
            self.layout, self.routines, self.panels, self.write, self.heads, self.rows,
        )  # fmt: skip


def segments(
    spec: DecoderSpec, weights: PanelWeights, storage: CPUStorage, ropes: Ropes
) -> tuple[Segment | LatentSegment, ...]:
    """All layers in order, together where they have the same shape."""
    groups = storage.spec.group_of_layers
    own = zip(spec.layers, weights.layers, storage.layers, groups, strict=True)
    layers = [PlacedLayer(*each) for each in own]
    dtype = weights.dtype
    return tuple(_any(list(run), ropes, dtype, spec.norm) for _, run in groupby(layers, _shape))


def _shape(placed: PlacedLayer) -> tuple[object, ...]:
    attention, storage = placed.spec.attention, placed.storage
    beside = (
        placed.spec.mlp, storage.array.dtype, coded_form(storage), storage.layout,
    )  # fmt: skip
    if isinstance(attention, LatentAttentionSpec):
        return (latent_shape(attention), *beside)
    return (attention.num_heads, attention.num_kv_heads, attention.head_dim, *beside)


def _any(
    layers: Sequence[PlacedLayer], ropes: Ropes, dtype: torch.dtype, norm: NormSpec
) -> Segment | LatentSegment:
    attention = layers[0].spec.attention
    if isinstance(attention, LatentAttentionSpec):
        return latent_segment(layers, attention, ropes, dtype, norm)
    return _segment(layers, attention, ropes, dtype, norm)


def _segment(
    layers: Sequence[PlacedLayer],
    attention: AttentionSpec,
    ropes: Ropes,
    dtype: torch.dtype,
    norm: NormSpec,
) -> Segment:
    storage = layers[0].storage
    num_kv_heads, head_dim = attention.num_kv_heads, attention.head_dim
    group_size = attention.num_heads // num_kv_heads
    shape = HeadShape(num_kv_heads, group_size, head_dim, storage.block_size, head_dim)
    assert MOST_ROWS * head_dim * 4 <= MEMORY_BYTES, "what a codec works with has to fit"
    is_paired = dtype == torch.bfloat16
    form = page_form(storage, is_paired=is_paired)
    kept = Addresses()
    table = [
        [*_fields(placed, ropes, norm, dtype, kept), *code_fields(placed.storage, form, kept.kept)]
        for placed in layers
    ]
    return Segment(
        table=np.array(table, np.int64),
        shape=shape,
        widths=widths_of(layers[0], dtype, form.item_size),
        layout=storage.layout,
        routines=layer_routines(layers[0].spec.mlp, norm, is_paired=is_paired),
        panels=product_routines(is_paired),
        write=write_routines(form, *fits(storage.codec)),
        heads=head_routines(form),
        rows=row_routines(form, is_paired),
        groups=frozenset(placed.group for placed in layers),
        kept=tuple(kept.kept),
    )


def _fields(
    placed: PlacedLayer, ropes: Ropes, norm: NormSpec, dtype: torch.dtype, kept: Addresses
) -> LayerFields:
    """One layer's row of the table; what it has addresses of is added to `kept`."""
    weights, attention = placed.weights, placed.spec.attention
    assert isinstance(attention, AttentionSpec)
    cap, sinks = attention.logit_cap, weights.sink_logits
    return layer_fields(
        placed, ropes, norm, dtype, kept,
        q_norm=kept.norm(weights.q_norm, norm.weight_offset),
        k_norm=kept.norm(weights.k_norm, norm.weight_offset),
        norms_rows=int(attention.qk_norm is QKNorm.ROW),
        logit_cap=0 if cap is None else kept.logits([cap]),
        sink_logits=0 if sinks is None else kept.logits(sinks.tolist()),
    )  # fmt: skip
