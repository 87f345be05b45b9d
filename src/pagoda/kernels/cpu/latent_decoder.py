"""Runs of layers of multi-head latent attention (DeepSeek-V2) in one compiled function.

A token leaves one vector in the cache, its latent and the key that all heads share. Keys and values
of the heads are never made: what of a query is not rotated goes through the head's `key_up` and
meets latents, and what a head gets is a sum of latents, which goes through its `value_up`. So every
row, prefilled or decoded, does the same. One layer is some phases, each a barrier:

    norm | q_down | kv_down | norm | q | rotary and write | key_up | copy | attention | merge
    value_up | norm ahead | round | o | add | norm | gate and up | round | down, or experts | add

To attention these are `num_heads` query heads of one KV head, whose values are the first numbers of
its keys. Where rows see sinks apart, what is absorbed of queries is copied beside what is rotated
for these.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from pagoda.kernels.cpu.attention import Layer, RowRoutines, attend
from pagoda.kernels.cpu.attention_scratch import Scratch, scratch_at
from pagoda.kernels.cpu.attention_tiling import TilingAddresses
from pagoda.kernels.cpu.decoder import (
    FEED_FORWARD_PHASES,
    LayerFields,
    Routines,
    Step,
    Widths,
    add_attended,
    feed_forward,
)
from pagoda.kernels.cpu.head_product import HeadTarget, HeadWeights, multiply_heads
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.latent_rows import (
    LatentRows,
    LatentShape,
    LatentWrite,
    copy_absorbed,
    latent_routine,
    latent_write,
    write_latents,
)
from pagoda.kernels.cpu.multiply import MEMORY_BYTES, ProductRoutines, entry_of_run, multiply
from pagoda.kernels.cpu.norm import norm_routine, norm_rows
from pagoda.kernels.cpu.number import integer_at, integers_at
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.page_product import HeadRoutines
from pagoda.kernels.cpu.pages import NO_CODES, LayerPages
from pagoda.kernels.cpu.sums import sum_routine
from pagoda.kernels.cpu.team import PHASE_BYTES, Team, team_of
from pagoda.kernels.page_layout import PageLayout

LATENT_PHASES = 15 + FEED_FORWARD_PHASES
"""Phases of one layer."""
_FLOAT_SIZE: Any = np.int64(4)
_NONE: Any = np.int64(0)


class LatentFields(NamedTuple):
    """What a layer has beside its `LayerFields`: addresses, of weights the tables of their panels.

    Of those `qkv` is the weight of queries alone; `q_norm` is [q_rank], `k_norm` [rank].
    """

    first: int
    """The weight that is read first."""
    q_down: int
    """0: queries are made of the stream."""
    q_down_bias: int
    """[q_rank]"""
    kv_down: int
    kv_down_bias: int
    """[rank + rope_dim]"""
    key_up: int
    value_up: int
    eps: int
    """[1], of q_norm and k_norm"""


_NUM_FIELDS, _NUM_LAYER_FIELDS = len(LatentFields._fields), len(LayerFields._fields)
_TILING_FIELDS = len(TilingAddresses._fields)
LATENT_ROW_FIELDS = _NUM_FIELDS + _NUM_LAYER_FIELDS
"""Numbers of a row of the table: a layer's `LatentFields`, and after them its `LayerFields`."""


class LatentRoutines(NamedTuple):
    """Addresses of what such a layer calls beside `Routines`."""

    row: int
    """`latent_routine`"""
    norm: int
    """Of queries' latents."""
    keep: int
    """Puts sums as the weights' dtype."""
    encode: int
    """As `LatentWrite`'s, and the next two"""
    encode_last: int
    group_size: int


@cache
def latent_routines(paired_weights: bool, form: PageForm) -> LatentRoutines:
    """For weights of bfloat16, which come in pairs, or float32, and for a cache."""
    paired_cache = form.paired or form.latent is not None  # whose shared keys are bfloat16
    return LatentRoutines(
        latent_routine(paired_weights, paired_cache).address,
        norm_routine(paired_weights, False).address,
        sum_routine(adds=False, paired=paired_weights).address,
        *latent_write(form.latent),
    )


class LatentStep(NamedTuple):
    """Memory beside that of `Step` that every layer writes in turn: addresses."""

    q_down: int
    """[rows, q_rank] float32"""
    q_latent: int
    """[rows, q_rank] of the weights' dtype"""
    down: int
    """[rows, rank + rope_dim] float32"""
    plain: int
    """As `LatentRows`', as the next one."""
    queries: int
    latents: int
    """[rows, num_heads * rank] of the weights' dtype: what attention gives"""
    no_bias: int
    """Zeros, as many as a weight has rows."""


@njit(error_model="numpy")
def _make_queries(
    phase: int, team: Team, own: LatentFields, layer: LayerFields, step: Step,
    latent_step: LatentStep, widths: Widths, shape: LatentShape, routines: Routines,
    latent_routines: LatentRoutines, panels: ProductRoutines, memory: int,
) -> None:  # fmt: skip
    """From the stream to queries, and to latents and shared keys: five phases."""
    rows, size = step.num_rows, widths.weight_size
    depth, q_depth = widths.hidden * size // 4, shape.q_rank * size // 4
    norm_rows(
        phase, routines.norm, step.hidden, size, step.stream, step.rows, rows, widths.hidden,
        layer.attention_norm, step.eps, routines.round, step.records,
    )  # fmt: skip
    if own.q_down != 0:
        multiply(
            phase + PHASE_BYTES, team, panels, routines.keep, memory,
            latent_step.q_down, shape.q_rank * 4, _FLOAT_SIZE, step.hidden, rows, depth,
            step.records, own.q_down, _NONE, shape.q_rank, own.q_down_bias, _NONE,
            entry_of_run(team, own.kv_down, rows),
        )  # fmt: skip
    down_width = shape.rank + shape.rope_dim
    multiply(
        phase + 2 * PHASE_BYTES, team, panels, routines.keep, memory,
        latent_step.down, down_width * 4, _FLOAT_SIZE, step.hidden, rows, depth, step.records,
        own.kv_down, _NONE, down_width, own.kv_down_bias, _NONE,
        entry_of_run(team, layer.qkv, rows),
    )  # fmt: skip
    source = step.hidden
    if own.q_down != 0:
        norm_rows(
            phase + 3 * PHASE_BYTES, latent_routines.norm, latent_step.q_latent, size,
            latent_step.q_down, step.rows, rows, shape.q_rank, layer.q_norm, own.eps,
            routines.round, step.records,
        )  # fmt: skip
        source, depth = latent_step.q_latent, q_depth
    multiply(
        phase + 4 * PHASE_BYTES, team, panels, routines.keep, memory,
        step.qkv, widths.qkv * 4, _FLOAT_SIZE, source, rows, depth, step.records,
        layer.qkv, _NONE, widths.qkv, layer.qkv_bias, _NONE, entry_of_run(team, own.key_up, rows),
    )  # fmt: skip


@njit(error_model="numpy")
def _run_layer(
    phase: int, team: Team, fields: int, following: int, step: Step, latent_step: LatentStep,
    widths: Widths, shape: LatentShape, head_shape: HeadShape, layout: PageLayout,
    routines: Routines, latent_routines: LatentRoutines, panels: ProductRoutines,
    heads: HeadRoutines, rows_of_heads: RowRoutines, scratch: Scratch, memory: int,
) -> None:  # fmt: skip
    """One layer, whose fields begin at an address."""
    own = LatentFields(*integers_at(fields, _NUM_FIELDS))
    layer = LayerFields(*integers_at(fields + _NUM_FIELDS * 8, _NUM_LAYER_FIELDS))
    tiling = TilingAddresses(
        *integers_at(step.tilings + layer.group * _TILING_FIELDS * 8, _TILING_FIELDS)
    )
    rows, size = step.num_rows, widths.weight_size
    down_width = shape.rank + shape.rope_dim
    _make_queries(
        phase, team, own, layer, step, latent_step, widths, shape, routines, latent_routines,
        panels, memory,
    )  # fmt: skip
    made = LatentRows(
        step.qkv, latent_step.down, latent_step.plain, latent_step.queries, step.sink_queries
    )
    write_latents(
        phase + 5 * PHASE_BYTES, step.num_threads, latent_routines.row,
        LatentWrite(
            latent_routines.encode, latent_routines.encode_last, latent_routines.group_size
        ),
        made, rows, shape, size, layer.blocks, layout, head_shape.block_size, tiling.slot_mapping,
        tiling.positions, tiling.sink_positions, layer.cosines, layer.sines, layer.k_norm, own.eps,
        memory,
    )  # fmt: skip
    multiply_heads(
        phase + 6 * PHASE_BYTES, team, panels, memory,
        HeadTarget(routines.keep, latent_step.queries, shape.num_heads * down_width * 4,
                   down_width * 4, _FLOAT_SIZE, latent_step.no_bias),
        latent_step.plain, rows,
        HeadWeights(own.key_up, shape.num_heads, shape.rank, shape.nope_dim * size // 4),
        entry_of_run(team, own.value_up, rows),
    )  # fmt: skip
    if tiling.sink_positions != 0:
        copy_absorbed(phase + 7 * PHASE_BYTES, step.num_threads, made, rows, shape)
    query_bytes = shape.num_heads * down_width * 4
    attention = Layer(
        latent_step.latents, shape.num_heads * shape.rank * size, latent_step.queries,
        query_bytes, step.sink_queries, query_bytes, layer.blocks, layer.scale, layer.logit_cap,
        layer.sink_logits, LayerPages(layout, widths.cache_size, NO_CODES),
    )  # fmt: skip
    attend(
        phase + 8 * PHASE_BYTES, phase + 9 * PHASE_BYTES, team, attention, tiling,
        head_shape, heads, rows_of_heads, scratch,
    )  # fmt: skip
    multiply_heads(
        phase + 10 * PHASE_BYTES, team, panels, memory,
        HeadTarget(latent_routines.keep, step.attended, widths.attended * size,
                   shape.value_dim * size, size, latent_step.no_bias),
        latent_step.latents, rows,
        HeadWeights(own.value_up, shape.num_heads, shape.value_dim, shape.rank * size // 4),
        entry_of_run(team, layer.o, rows),
    )  # fmt: skip
    add_attended(phase + 11 * PHASE_BYTES, team, layer, step, widths, routines, panels, memory)
    feed_forward(
        phase + 15 * PHASE_BYTES, team, layer, following, step, widths, routines, panels, memory
    )


@kernel
def run_latent_layers(
    table: int, num_layers: int, following: int, step: Step, latent_step: LatentStep,
    widths: Widths, shape: LatentShape, head_shape: HeadShape, layout: PageLayout,
    routines: Routines, latent_routines: LatentRoutines, panels: ProductRoutines,
    heads: HeadRoutines, rows_of_heads: RowRoutines,
) -> None:  # fmt: skip
    """Run layers of one shape in order over the rows of a step, and write their latents.

    table: address of [num_layers, `LATENT_ROW_FIELDS`] int64. following: of what is read after the
    last layer.
    """
    for thread in prange(step.num_threads):
        team = team_of(thread, step.num_threads, step.places)
        memory = step.memory + thread * step.memory_bytes
        scratch = scratch_at(memory + MEMORY_BYTES, step.most_rows, head_shape, heads)
        for layer in range(num_layers):
            fields = table + layer * LATENT_ROW_FIELDS * 8
            upcoming = following
            if layer + 1 < num_layers:
                upcoming = integer_at(fields, LATENT_ROW_FIELDS, 64)  # the first of the next one
            _run_layer(
                step.counters + layer * LATENT_PHASES * PHASE_BYTES, team, fields, upcoming, step,
                latent_step, widths, shape, head_shape, layout, routines, latent_routines, panels,
                heads, rows_of_heads, scratch, memory,
            )  # fmt: skip
