"""A run of layers of latent attention of one shape, as one compiled function takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from pagoda.execution.cpu.addresses import Addresses, address_of, height_of
from pagoda.execution.cpu.layer_codes import page_form
from pagoda.execution.cpu.layer_table import (
    PlacedLayer,
    Ropes,
    layer_fields,
    layer_routines,
    widths_of,
)
from pagoda.execution.cpu.workspace import Workspace
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention import RowRoutines, row_routines
from pagoda.kernels.cpu.decoder import Routines, Step, Widths
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.latent_decoder import (
    LATENT_PHASES,
    LatentFields,
    LatentRoutines,
    LatentStep,
    latent_routines,
    run_latent_layers,
)
from pagoda.kernels.cpu.latent_rows import LatentShape
from pagoda.kernels.cpu.multiply import MEMORY_BYTES, ProductRoutines, product_routines
from pagoda.kernels.cpu.page_product import HeadRoutines, head_routines
from pagoda.kernels.page_layout import PageLayout
from pagoda.models.decoder import LatentAttentionSpec, NormSpec

_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class LatentSegment:
    """Consecutive layers and the code for them."""

    num_phases: ClassVar[int] = LATENT_PHASES

    table: Array
    """[layers, `LATENT_ROW_FIELDS`] int64"""
    shape: HeadShape
    latent_shape: LatentShape
    widths: Widths
    layout: PageLayout
    routines: Routines
    latent_routines: LatentRoutines
    panels: ProductRoutines
    heads: HeadRoutines
    rows: RowRoutines
    groups: frozenset[int]
    """Of the cache, that its layers are of."""
    no_bias: Array
    kept: tuple[Array, ...]
    """What the table has addresses of and nobody else holds."""

    @property
    def widest(self) -> int:
        """Numbers of the longest rows that a product takes."""
        widths = self.widths
        return max(widths.hidden, widths.attended, widths.inner, self.latent_shape.q_rank)

    @property
    def query_width(self) -> int:
        """Numbers of a row of queries, as they meet the cache."""
        return self.latent_shape.num_heads * self.shape.head_dim

    def run(self, first: int, count: int, following: int, step: Step, workspace: Workspace) -> None:
        """Run `count` layers from number `first` on; following: the weight that is read next."""
        run_latent_layers(
            self.table[first:].ctypes.data, count, following, step,
            self._memory(step.num_rows, workspace), self.widths, self.latent_shape, self.shape,
            self.layout, self.routines, self.latent_routines, self.panels, self.heads, self.rows,
        )  # fmt: skip

    def _memory(self, num_rows: int, workspace: Workspace) -> LatentStep:
        shape = self.latent_shape
        stored = np.dtype(np.uint16 if self.widths.weight_size == 2 else np.float32)
        down = shape.rank + shape.rope_dim

        def address(name: str, width: int, dtype: np.dtype[np.generic]) -> int:
            return workspace.address(name, num_rows, width, dtype)

        return LatentStep(
            q_down=address("q_down", shape.q_rank, _FLOAT),
            q_latent=address("q_latent", shape.q_rank, stored),
            down=address("down", down, _FLOAT),
            plain=address("plain", shape.num_heads * shape.nope_dim, stored),
            queries=address("queries", shape.num_heads * down, _FLOAT),
            latents=address("latents", shape.num_heads * shape.rank, stored),
            no_bias=self.no_bias.ctypes.data,
        )


def latent_shape(attention: LatentAttentionSpec) -> LatentShape:
    """Its numbers, as kernels take them."""
    return LatentShape(
        attention.num_heads,
        attention.q_rank or 0,
        attention.rank,
        attention.nope_dim,
        attention.rope_dim,
        attention.value_dim,
    )


def latent_segment(
    layers: Sequence[PlacedLayer],
    attention: LatentAttentionSpec,
    ropes: Ropes,
    dtype: torch.dtype,
    norm: NormSpec,
) -> LatentSegment:
    """Layers of that attention, one after the other."""
    storage = layers[0].storage
    is_paired = dtype == torch.bfloat16
    form = page_form(storage, is_paired=is_paired)
    if form.latent is not None:
        group_bytes = form.latent.whole.head_size * _FLOAT.itemsize
        assert 2 * group_bytes <= MEMORY_BYTES, "what a codec works with has to fit"
    kept = Addresses()
    shape = latent_shape(attention)
    return LatentSegment(
        table=np.array([_fields(placed, ropes, norm, dtype, kept) for placed in layers], np.int64),
        shape=HeadShape(
            1, attention.num_heads, storage.head_size, storage.block_size, attention.rank
        ),
        latent_shape=shape,
        widths=widths_of(layers[0], dtype, form.item_size),
        layout=storage.layout,
        routines=layer_routines(layers[0].spec.mlp, norm, is_paired=is_paired),
        latent_routines=latent_routines(is_paired, form),
        panels=product_routines(is_paired),
        heads=head_routines(form),
        rows=row_routines(form, is_paired),
        groups=frozenset(placed.group for placed in layers),
        no_bias=np.zeros(max(shape.rank, shape.value_dim), np.float32),
        kept=tuple(kept.kept),
    )


def _fields(
    placed: PlacedLayer, ropes: Ropes, norm: NormSpec, dtype: torch.dtype, kept: Addresses
) -> tuple[int, ...]:
    """One layer's row of the table; what it has addresses of is added to `kept`."""
    weights, attention = placed.weights, placed.spec.attention
    assert isinstance(attention, LatentAttentionSpec)
    assert weights.kv_down is not None
    assert weights.key_up is not None
    assert weights.value_up is not None
    q_down = weights.q_down
    own = LatentFields(
        first=(q_down or weights.kv_down).address,
        q_down=address_of(q_down),
        q_down_bias=kept.bias(weights.q_down_bias, height_of(q_down)),
        kv_down=weights.kv_down.address,
        kv_down_bias=kept.bias(weights.kv_down_bias, height_of(weights.kv_down)),
        key_up=weights.key_up.address,
        value_up=weights.value_up.address,
        eps=kept.one(attention.norm_eps),
    )
    layer = layer_fields(
        placed, ropes, norm, dtype, kept,
        q_norm=kept.norm(weights.q_norm), k_norm=kept.norm(weights.k_norm), norms_rows=0,
        logit_cap=0, sink_logits=0,
    )  # fmt: skip
    return (*own, *layer)
