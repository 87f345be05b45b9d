"""The feed-forward part of a layer where each row goes to some of many experts.

    router | route | group | gather | shared: gate and up | round | down
    gate and up | round | down | combine

A row is routed, its experts' products are taken with the rows that each has got, and what comes out
is weighted and summed (`route`, `expert_rows`, `grouped_product`, `combine`). The phases of the
shared expert are left out where there is none, those that round where products take rows as they
are. Not a bit of a row's result depends on its batch.

    Shazeer et al., "Outrageously large neural networks", arXiv 1701.06538

All of it is one routine, which models without experts need not compile.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import njit

from pagoda.kernels.cpu.combine import COMBINE_BYTES, Shared, combine, combine_routine
from pagoda.kernels.cpu.expert_rows import gather_rows, group_rows
from pagoda.kernels.cpu.grouped_product import (
    WEIGHT_BYTES,
    Groups,
    entry_of_items,
    multiply_grouped,
)
from pagoda.kernels.cpu.int8_rows import RECORD_BYTES, round_routine, round_rows
from pagoda.kernels.cpu.multiply import MEMORY_BYTES, ProductRoutines, entry_of_run, multiply
from pagoda.kernels.cpu.number import integer_at, integers_at
from pagoda.kernels.cpu.operands import Rows, Target
from pagoda.kernels.cpu.route import RouteFields, route, route_bytes, route_routine
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.sums import sum_routine
from pagoda.kernels.cpu.team import PHASE_BYTES, Team

EXPERT_PHASES = 11
"""Phases of the part."""
EXPERT_BYTES = 2 * WEIGHT_BYTES
"""Of an expert in the table of experts."""
MOST_EXPERTS = MEMORY_BYTES // route_bytes(1)
"""As many can be routed to in a thread's memory."""
_FLOAT_SIZE: Any = 4
_NONE: Any = 0

assert COMBINE_BYTES <= MEMORY_BYTES


class ExpertsFields(NamedTuple):
    """The experts of a layer: the first whole numbers of its row, most of them addresses.

    E is the number of experts, h the hidden size, I their inner size, S that of the shared expert.
    Weights are tables of panels, biases are float32, of zeros where there are none.
    """

    routine: int
    """`experts_routine`"""
    router: int
    """[E, h], or, where the shared expert has a gate, [E + 1, h], of which that is the last row."""
    router_bias: int
    """As many numbers as the router has rows."""
    table: int
    """[E, 2] `GroupedWeight`: gate and up, which are two, and down, which is one."""
    gate_routine: int
    """Of what gates experts and the shared one (`sums.gate_routine`)."""
    hidden: int
    """h; no address."""
    inner: int
    """I; no address."""
    weight_size: int
    """Bytes of a number that products take; no address."""
    shared_gate: int
    """[S, h]"""
    shared_up: int
    """[S, h]"""
    shared_down: int
    """[h, S]"""
    shared_gate_bias: int
    shared_up_bias: int
    shared_down_bias: int
    shared_inner: int
    """S; 0: there is no shared expert, and nothing of it is read. No address."""
    is_shared_gated: int
    """Whether the shared expert has a gate; no address."""


class ExpertsRoutines(NamedTuple):
    """Addresses of what the part calls beside products' inner loops and the gate."""

    route: int
    combine: int
    keep: int
    round: int


class ExpertsMemory(NamedTuple):
    """What the part writes, for layers in turn: a row of addresses. k experts are of each row."""

    logits: int
    """[rows, E, or E + 1] float32"""
    chosen: int
    """[rows, k] int32, ascending"""
    weights: int
    """[rows, k] float32"""
    starts: int
    """[E + 1] int32"""
    sources: int
    """[rows * k] int32"""
    places: int
    """[rows, k] int32"""
    gathered: int
    """[rows * k, h] of the weights' dtype"""
    gated: int
    """[rows * k, I] of the weights' dtype"""
    out: int
    """[rows * k, h] float32"""
    records: int
    """Of rows · k rows of the larger of h and I; 0: they are not rounded."""
    shared_gated: int
    """[rows, S] of the weights' dtype"""
    shared_out: int
    """[rows, h] float32"""


_OWN_FIELDS = len(ExpertsFields._fields)
_ROUTE_FIELDS = len(RouteFields._fields)
_PRODUCT_FIELDS = len(ProductRoutines._fields)
_ROUTINE_FIELDS = len(ExpertsRoutines._fields)
_MEMORY_FIELDS = len(ExpertsMemory._fields)


@cache
def _experts_routines() -> ExpertsRoutines:
    return ExpertsRoutines(
        route_routine().address,
        combine_routine().address,
        sum_routine(adds=False).address,
        round_routine().address,
    )


def experts_row(own: ExpertsFields, how: RouteFields, panels: ProductRoutines) -> tuple[int, ...]:
    """The row of a layer: its `ExpertsFields`, how it routes, and what routines it takes."""
    return (*own, *how, *panels, *_experts_routines())


class _Layer(NamedTuple):
    """A thread's view of a layer and a step."""

    phase: int
    team: Team
    memory: int
    x: int
    num_rows: int
    records: int


@njit(error_model="numpy")
def _run_shared(
    layer: _Layer, own: ExpertsFields, panels: ProductRoutines, routines: ExpertsRoutines,
    work: ExpertsMemory, following: int,
) -> None:  # fmt: skip
    """Three phases: shared_out = the shared expert's results."""
    size, rows, inner = own.weight_size, layer.num_rows, own.shared_inner
    multiply(
        layer.phase + 4 * PHASE_BYTES, layer.team, panels, own.gate_routine, layer.memory,
        work.shared_gated, inner * size, size, layer.x, rows, own.hidden * size // 4, layer.records,
        own.shared_gate, own.shared_up, inner, own.shared_gate_bias, own.shared_up_bias,
        entry_of_run(layer.team, own.shared_down, rows),
    )  # fmt: skip
    if layer.records != 0:
        round_rows(
            layer.phase + 5 * PHASE_BYTES, routines.round, layer.records, work.shared_gated, rows,
            inner,
        )  # fmt: skip
    multiply(
        layer.phase + 6 * PHASE_BYTES, layer.team, panels, routines.keep, layer.memory,
        work.shared_out, own.hidden * 4, _FLOAT_SIZE, work.shared_gated, rows, inner * size // 4,
        layer.records, own.shared_down, _NONE, own.hidden, own.shared_down_bias, _NONE, following,
    )  # fmt: skip


@njit(error_model="numpy")
def _run_chosen(
    layer: _Layer, own: ExpertsFields, panels: ProductRoutines, routines: ExpertsRoutines,
    work: ExpertsMemory, count: int, gate_up: Groups, down: Groups, following: int,
) -> None:  # fmt: skip
    """Three phases: out = the results of all experts, each with its rows; count: all of these."""
    size, stride = own.weight_size, count * RECORD_BYTES
    multiply_grouped(
        layer.phase + 7 * PHASE_BYTES, layer.team, panels, layer.memory,
        Target(own.gate_routine, work.gated, own.inner * size, size),
        Rows(work.gathered, count, own.hidden * size // 4, work.records, stride), gate_up,
        entry_of_items(layer.team, layer.phase + 9 * PHASE_BYTES, down),
    )  # fmt: skip
    if work.records != 0:
        round_rows(
            layer.phase + 8 * PHASE_BYTES, routines.round, work.records, work.gated, count,
            own.inner,
        )  # fmt: skip
    multiply_grouped(
        layer.phase + 9 * PHASE_BYTES, layer.team, panels, layer.memory,
        Target(routines.keep, work.out, own.hidden * 4, _FLOAT_SIZE),
        Rows(work.gated, count, own.inner * size // 4, work.records, stride), down, following,
    )  # fmt: skip


@cache
def experts_routine() -> Any:
    """What `experts` calls. Compiles it or takes it from disk."""

    def run_experts(
        phase: int, thread: int, num_threads: int, places: int, memory: int, fields: int,
        work_fields: int, x: int, rows: int, records: int, target: int, adds: int, following: int,
    ) -> None:  # fmt: skip
        """See `experts`."""
        how_at = fields + 8 * _OWN_FIELDS
        panels_at = how_at + 8 * _ROUTE_FIELDS
        own = ExpertsFields(*integers_at(fields, _OWN_FIELDS))
        how = RouteFields(*integers_at(how_at, _ROUTE_FIELDS))
        panels = ProductRoutines(*integers_at(panels_at, _PRODUCT_FIELDS))
        routines = ExpertsRoutines(*integers_at(panels_at + 8 * _PRODUCT_FIELDS, _ROUTINE_FIELDS))
        work = ExpertsMemory(*integers_at(work_fields, _MEMORY_FIELDS))
        team = Team(thread, num_threads, places)
        layer = _Layer(phase, team, memory, x, rows, records)
        num_logits = how.num_experts + (1 if own.is_shared_gated != 0 else 0)
        count = rows * how.num_used
        has_shared = own.shared_inner != 0
        multiply(
            phase, team, panels, routines.keep, memory, work.logits, num_logits * 4,
            _FLOAT_SIZE, x, rows, own.hidden * own.weight_size // 4, records, own.router, _NONE,
            num_logits, own.router_bias, _NONE,
            entry_of_run(team, own.shared_gate, rows) if has_shared else own.router,
        )  # fmt: skip
        route(
            phase + PHASE_BYTES, routines.route, work.chosen, work.weights, work.logits,
            num_logits, rows, how.num_used, how_at, memory,
        )  # fmt: skip
        gate_up = Groups(
            own.table, EXPERT_BYTES, own.inner, how.num_experts, work.starts, how.num_used,
            num_threads,
        )  # fmt: skip
        down = Groups(
            own.table + WEIGHT_BYTES, EXPERT_BYTES, own.hidden, how.num_experts, work.starts,
            how.num_used, num_threads,
        )  # fmt: skip
        group_rows(
            phase + 2 * PHASE_BYTES, work.starts, work.sources, work.places, work.chosen, rows,
            how.num_used, how.num_experts, memory, phase + 7 * PHASE_BYTES, gate_up,
            phase + 9 * PHASE_BYTES, down,
        )  # fmt: skip
        gather_rows(
            phase + 3 * PHASE_BYTES, work.gathered, x, work.sources, count, own.hidden,
            own.weight_size, routines.round, work.records,
        )  # fmt: skip
        if has_shared:
            _run_shared(
                layer, own, panels, routines, work,
                entry_of_items(team, phase + 7 * PHASE_BYTES, gate_up),
            )  # fmt: skip
        _run_chosen(layer, own, panels, routines, work, count, gate_up, down, following)
        shared = Shared(
            work.shared_out if has_shared else 0,
            work.logits + how.num_experts * 4 if own.is_shared_gated != 0 else 0, num_logits,
        )  # fmt: skip
        combine(
            phase + 10 * PHASE_BYTES, routines.combine, target, adds, work.out, rows, own.hidden,
            work.places, work.weights, how.num_used, shared, memory,
        )  # fmt: skip

    return compiled(run_experts, 13)


@njit(error_model="numpy")
def experts(
    phase: int, team: Team, memory: int, fields: int, work_fields: int, x: int, rows: int,
    records: int, target: int, adds: int, following: int,
) -> None:  # fmt: skip
    """A thread's share of a layer's experts: target = or += Σ weight · expert(x) + shared(x).

    phase: of `EXPERT_PHASES` that nobody has begun, the same for all threads. memory:
    `MEMORY_BYTES` of the thread's own. fields: address of `experts_row`; work_fields: of
    `ExpertsMemory`, all changed. x: [rows, h] of the weights' dtype; records: of these rows,
    changed where there is a shared expert, whose inner rows they have to hold as well, or 0: rows
    are not rounded. target: [rows, h] float32, added to unless `adds` is 0. following: as for
    `multiply`.
    """
    call(
        integer_at(fields, 0, 64),
        (phase, team.thread, team.num_threads, team.places, memory, fields, work_fields, x, rows,
         records, target, adds, following),
    )  # fmt: skip
