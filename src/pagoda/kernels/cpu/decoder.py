"""Runs of layers of grouped-query attention in one compiled function.

Every thread runs the same function and takes its share of each phase (see `team`); Python is called
once a run. One layer is some phases, each a barrier:

    norm | qkv | rotary and write | attention | merge | norm ahead | round | o | add
    norm | gate and up | round | down | add

In place of gate and up, round and down there may be experts (`experts`). The two phases that round
are left out where products take rows as they are. A norm rounds its own rows. Where the
feed-forward part takes the stream that attention takes, its norm comes before anything is added.

A projection adds straight to the residual stream, which is float32, unless what it adds is normed
or scaled first. The gate is applied where the sums of gate and up are still in cache. So only what
the next product reads is rounded to the weights' dtype. All arrays are taken by address, so that
the code is the same for every model.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from pagoda.kernels.cpu.attention import (
    Layer,
    RowRoutines,
    Scratch,
    attend,
)
from pagoda.kernels.cpu.attention_scratch import scratch_at
from pagoda.kernels.cpu.attention_tiling import TilingAddresses
from pagoda.kernels.cpu.embed import embed_routine
from pagoda.kernels.cpu.experts import EXPERT_PHASES, experts
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.int8_rows import round_routine, round_rows
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.multiply import MEMORY_BYTES, ProductRoutines, entry_of_run, multiply
from pagoda.kernels.cpu.norm import add_rows, norm_routine, norm_rows
from pagoda.kernels.cpu.number import integer_at, integers_at
from pagoda.kernels.cpu.page_product import HeadRoutines
from pagoda.kernels.cpu.pages import CodeFields, LayerPages
from pagoda.kernels.cpu.rotary import rotate_and_write, rotate_routine
from pagoda.kernels.cpu.sums import activate_routine, gate_routine, sum_routine
from pagoda.kernels.cpu.team import PHASE_BYTES, Team, team_of
from pagoda.kernels.cpu.write import WriteRoutines
from pagoda.kernels.page_layout import PageLayout

FEED_FORWARD_PHASES = 2 + EXPERT_PHASES
"""Phases of the second half of a layer."""
PHASES = 9 + FEED_FORWARD_PHASES
"""Phases of one layer."""
# Not plain numbers, for which Numba would compile a function of their own.
_FLOAT_SIZE: Any = np.int64(4)
_NONE: Any = np.int64(0)


class LayerFields(NamedTuple):
    """One layer: a row of a table of whole numbers, most of them addresses.

    h is the hidden size, D the head size, Q the width of q, k and v together, I the inner size.
    Weights are tables of panels; the others are float32.
    """

    qkv: int
    o: int
    gate: int
    """Or the router, where there are experts, which have no up nor down here; or up."""
    up: int
    """0: there is no gate, or there are experts."""
    down: int
    attention_norm: int
    """[h], or at 0: no norm"""
    qkv_bias: int
    """[Q]"""
    q_norm: int
    """[D], or [Hq * D] where it norms rows, or at 0: no norm"""
    k_norm: int
    """As `q_norm`, [D] or [Hkv * D]."""
    norms_rows: int
    """1: all heads of a row's queries are normed together, and of its keys; else 0. No address."""
    o_bias: int
    """[h]"""
    attention_output_norm: int
    """As `attention_norm`."""
    mlp_norm: int
    """As `attention_norm`."""
    is_parallel: int
    """1: the feed-forward part takes the stream that attention takes, under its norm if that is at
    0; else 0. No address."""
    gate_bias: int
    """[I], of what is at `gate`"""
    up_bias: int
    """[I]"""
    down_bias: int
    """[h]"""
    mlp_output_norm: int
    """As `attention_norm`."""
    residual_scale: int
    """[1], or at 0: what is added to the stream is added as it is."""
    cosines: int
    """[positions, rotary_dim / 2]"""
    sines: int
    """As `cosines`."""
    half: int
    """rotary_dim / 2; 0: nothing is rotated. No address."""
    blocks: int
    """The layer's in the cache."""
    scale: int
    """[1]: times log2(e), multiplies q · k."""
    group: int
    """The cache's group that the layer is of. No address."""
    experts: int
    """Of the layer's `experts_row`; 0: it has none, but one gate, up and down."""
    logit_cap: int
    """[1]: times log2(e), what scores are held below; or at 0: nothing."""
    sink_logits: int
    """[num_heads]: times log2(e); or at 0: none."""


_NUM_FIELDS = len(LayerFields._fields)
_NUM_CODE_FIELDS = len(CodeFields._fields)
_TILING_FIELDS = len(TilingAddresses._fields)
ROW_FIELDS = _NUM_FIELDS + _NUM_CODE_FIELDS
"""Numbers of a row of the table: a layer's `LayerFields`, and after them its `CodeFields`."""


class Widths(NamedTuple):
    """Numbers in one row of each activation, and bytes of a number."""

    hidden: int
    qkv: int
    attended: int
    inner: int
    weight_size: int
    cache_size: int


class Routines(NamedTuple):
    """Addresses of what a layer calls beside attention and the products' inner loops."""

    embed: int
    norm: int
    norm_delta: int
    rotate: int
    keep: int
    add: int
    gate: int
    round: int


@cache
def routines(
    paired_weights: bool,
    is_centred: bool,
    activation: str,
    is_shifted: bool = False,
    is_gated: bool = True,
) -> Routines:
    """For weights in bfloat16, which come in pairs, or float32.

    is_centred: norms take the mean off; activation: of gates, or of what has none, by is_gated;
    is_shifted: norms have biases.
    """
    activate = gate_routine if is_gated else activate_routine
    return Routines(
        embed_routine(paired_weights).address,
        norm_routine(paired_weights, is_centred, is_shifted).address,
        norm_routine(False, is_centred, is_shifted).address,
        rotate_routine().address,
        sum_routine(adds=False).address,
        sum_routine(adds=True).address,
        activate(paired_weights, activation).address,
        round_routine().address,
    )


class Step(NamedTuple):
    """One step's rows, and memory that every layer writes in turn: addresses."""

    num_rows: int
    """No address."""
    num_threads: int
    """No address."""
    places: int
    """As `Team`'s."""
    counters: int
    """Counters of the `PHASES` phases of each layer; none is begun."""
    memory: int
    """The threads' memories, one after the other; a multiple of 64."""
    memory_bytes: int
    """Bytes of each; no address."""
    tilings: int
    """[groups, fields of `TilingAddresses`] int64"""
    most_rows: int
    """Query heads times tokens of the largest item of all tilings; no address."""
    rows: int
    """[rows] int64: 0, 1, 2, …"""
    stream: int
    """[rows, h] float32: the residual stream, changed"""
    delta: int
    """[rows, h] float32: what is added to the stream, where it is normed or scaled first"""
    hidden: int
    """[rows, h] of the weights' dtype"""
    qkv: int
    """[rows, Q] float32"""
    sink_queries: int
    """As queries, [rows, any] float32, where any row sees sinks apart"""
    attended: int
    """[rows, num_heads * D] of the weights' dtype"""
    gated: int
    """[rows, I] of the weights' dtype"""
    records: int
    """What rounding makes of the rows that a product takes; 0: they are not rounded."""
    eps: int
    """[1] float32, of every norm"""
    experts: int
    """Of `ExpertsMemory`; 0: no layer has experts."""


@njit(error_model="numpy")
def _round(phase: int, step: Step, routines: Routines, x: int, rows: int, width: int) -> None:
    """A thread's share of rounding what the next product takes, where it is rounded."""
    if step.records != 0:
        round_rows(phase, routines.round, step.records, x, rows, width)


@njit(error_model="numpy")
def add_attended(
    phase: int, team: Team, layer: LayerFields, step: Step, widths: Widths, routines: Routines,
    panels: ProductRoutines, memory: int,
) -> None:  # fmt: skip
    """From what attention gives to the stream: four phases, norm ahead | round | o | add."""
    rows, size = step.num_rows, widths.weight_size
    if layer.is_parallel != 0 and layer.mlp_norm != 0:
        norm_rows(
            phase, routines.norm, step.hidden, size, step.stream, step.rows, rows, widths.hidden,
            layer.mlp_norm, step.eps, routines.round, _NONE,
        )  # fmt: skip
    phase += PHASE_BYTES
    _round(phase, step, routines, step.attended, rows, widths.attended)
    adds_later = layer.residual_scale != 0
    added = step.delta if adds_later else step.stream
    add = routines.keep if adds_later else routines.add
    multiply(
        phase + PHASE_BYTES, team, panels, add, memory, added, widths.hidden * 4,
        _FLOAT_SIZE,
        step.attended, rows, widths.attended * size // 4, step.records, layer.o, _NONE,
        widths.hidden, layer.o_bias, _NONE, entry_of_run(team, layer.gate, rows),
    )  # fmt: skip
    if adds_later:
        add_rows(
            phase + 2 * PHASE_BYTES, routines.norm_delta, step.stream, step.delta, step.rows, rows,
            widths.hidden, layer.attention_output_norm, layer.residual_scale, step.eps,
        )  # fmt: skip


@njit(error_model="numpy")
def feed_forward(
    phase: int, team: Team, layer: LayerFields, following: int, step: Step, widths: Widths,
    routines: Routines, panels: ProductRoutines, memory: int,
) -> None:  # fmt: skip
    """The second half of a layer: norm | gate and up | round | down, or experts | add.

    phase: of `FEED_FORWARD_PHASES` that nobody has begun. following: of what is read after the
    layer.
    """
    rows, size = step.num_rows, widths.weight_size
    if layer.is_parallel != 0:
        _round(phase, step, routines, step.hidden, rows, widths.hidden)
    else:
        norm_rows(
            phase, routines.norm, step.hidden, size, step.stream, step.rows, rows, widths.hidden,
            layer.mlp_norm, step.eps, routines.round, step.records,
        )  # fmt: skip
    adds_later = layer.residual_scale != 0
    added = step.delta if adds_later else step.stream
    if layer.experts != 0:
        experts(
            phase + PHASE_BYTES, team, memory, layer.experts, step.experts, step.hidden, rows,
            step.records, added, 0 if adds_later else 1, entry_of_run(team, following, rows),
        )  # fmt: skip
    else:
        multiply(
            phase + PHASE_BYTES, team, panels, routines.gate, memory,
            step.gated, widths.inner * size, size, step.hidden, rows, widths.hidden * size // 4,
            step.records, layer.gate, layer.up, widths.inner, layer.gate_bias, layer.up_bias,
            entry_of_run(team, layer.down, rows),
        )  # fmt: skip
        _round(phase + 2 * PHASE_BYTES, step, routines, step.gated, rows, widths.inner)
        multiply(
            phase + 3 * PHASE_BYTES, team, panels,
            routines.keep if adds_later else routines.add, memory, added, widths.hidden * 4,
            _FLOAT_SIZE, step.gated, rows, widths.inner * size // 4, step.records, layer.down,
            _NONE, widths.hidden, layer.down_bias, _NONE, entry_of_run(team, following, rows),
        )  # fmt: skip
    if adds_later:
        add_rows(
            phase + (1 + EXPERT_PHASES) * PHASE_BYTES, routines.norm_delta, step.stream,
            step.delta, step.rows, rows, widths.hidden, layer.mlp_output_norm,
            layer.residual_scale, step.eps,
        )  # fmt: skip


@njit(error_model="numpy")
def _run_layer(
    phase: int, team: Team, fields: int, following: int, step: Step, widths: Widths,
    shape: HeadShape, layout: PageLayout, routines: Routines, panels: ProductRoutines,
    write: WriteRoutines, heads: HeadRoutines, rows_of_heads: RowRoutines, scratch: Scratch,
    memory: int,
) -> None:  # fmt: skip
    """One layer, whose fields begin at an address."""
    layer = LayerFields(*integers_at(fields, _NUM_FIELDS))
    codes = CodeFields(*integers_at(fields + _NUM_FIELDS * 8, _NUM_CODE_FIELDS))
    pages = LayerPages(layout, widths.cache_size, codes)
    tiling = TilingAddresses(
        *integers_at(step.tilings + layer.group * _TILING_FIELDS * 8, _TILING_FIELDS)
    )
    rows, size = step.num_rows, widths.weight_size
    hidden_depth = widths.hidden * size // 4
    norm_rows(
        phase, routines.norm, step.hidden, size, step.stream, step.rows, rows, widths.hidden,
        layer.attention_norm, step.eps, routines.round, step.records,
    )  # fmt: skip
    multiply(
        phase + PHASE_BYTES, team, panels, routines.keep, memory,
        step.qkv, widths.qkv * 4, _FLOAT_SIZE, step.hidden, rows, hidden_depth, step.records,
        layer.qkv, _NONE, widths.qkv, layer.qkv_bias, _NONE, entry_of_run(team, layer.o, rows),
    )  # fmt: skip
    rotate_and_write(
        phase + 2 * PHASE_BYTES, step.num_threads, routines.rotate, write, step.qkv, rows,
        layer.blocks, pages, tiling.slot_mapping, tiling.positions, tiling.sink_positions,
        step.sink_queries, shape, layer.cosines, layer.sines, layer.half, layer.q_norm,
        layer.k_norm, layer.norms_rows, step.eps, memory,
    )  # fmt: skip
    attention = Layer(
        step.attended, widths.attended * size, step.qkv, widths.qkv * 4, step.sink_queries,
        widths.attended * 4, layer.blocks, layer.scale, layer.logit_cap, layer.sink_logits,
        pages,
    )  # fmt: skip
    attend(
        phase + 3 * PHASE_BYTES, phase + 4 * PHASE_BYTES, team, attention, tiling, shape, heads,
        rows_of_heads, scratch,
    )  # fmt: skip
    add_attended(phase + 5 * PHASE_BYTES, team, layer, step, widths, routines, panels, memory)
    feed_forward(
        phase + 9 * PHASE_BYTES, team, layer, following, step, widths, routines, panels, memory
    )


@kernel
def run_layers(
    table: int, num_layers: int, following: int, step: Step, widths: Widths, shape: HeadShape,
    layout: PageLayout, routines: Routines,
    panels: ProductRoutines, write: WriteRoutines, heads: HeadRoutines, rows_of_heads: RowRoutines,
) -> None:  # fmt: skip
    """Run layers of one shape in order over the rows of a step, and write their K and V.

    table: address of [num_layers, `ROW_FIELDS`] int64. following: of what is read
    after the last layer.
    """
    for thread in prange(step.num_threads):
        team = team_of(thread, step.num_threads, step.places)
        memory = step.memory + thread * step.memory_bytes
        scratch = scratch_at(memory + MEMORY_BYTES, step.most_rows, shape, heads)
        for layer in range(num_layers):
            fields = table + layer * ROW_FIELDS * 8
            upcoming = following
            if layer + 1 < num_layers:
                upcoming = integer_at(fields, ROW_FIELDS, 64)  # the first of the next layer's
            _run_layer(
                step.counters + layer * PHASES * PHASE_BYTES, team, fields,
                upcoming, step, widths, shape, layout, routines, panels, write, heads,
                rows_of_heads, scratch, memory,
            )  # fmt: skip


def memory_bytes(most_rows: int, shape: HeadShape, heads: HeadRoutines) -> int:
    """What a thread needs of `Step.memory`, for a tiling's `most_rows`."""
    return scratch_at(MEMORY_BYTES, most_rows, shape, heads).end
