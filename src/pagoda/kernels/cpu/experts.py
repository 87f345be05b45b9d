"""The feed-forward part of a layer where each row goes to some of many experts.

    router | route | group | gather | shared: gate and up | round | down
    gate and up | round | down | combine

A row is routed, its experts' products are taken with the rows that each has got, and what comes out
is weighted and summed (`route`, `expert_rows`, `grouped_product`, `combine`). The phases of the
shared expert are left out where there is none, those that round where products take rows as they
are. Not a bit of a row's result depends on its batch.

    Shazeer et al., "Outrageously large neural networks", arXiv 1701.06538
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
    first_used,
    multiply_grouped,
)
from pagoda.kernels.cpu.int8_rows import RECORD_BYTES, round_routine, round_rows
from pagoda.kernels.cpu.multiply import MEMORY_BYTES, ProductRoutines, Rows, Target, multiply
from pagoda.kernels.cpu.number import integers_at
from pagoda.kernels.cpu.route import RouteFields, route, route_bytes, route_routine
from pagoda.kernels.cpu.sums import sum_routine
from pagoda.kernels.cpu.team import PHASE_BYTES

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
    """The experts of a layer: what follows its `RouteFields` in a row of whole numbers.

    E is the number of experts, I their inner size, S that of the shared expert. Weights are tables
    of panels, biases are float32, of zeros where there are none.
    """

    router: int
    """[E, h], or, where the shared expert has a gate, [E + 1, h], of which that is the last row."""
    router_bias: int
    """As many numbers as the router has rows."""
    table: int
    """[E, 2] `GroupedWeight`: gate and up, which are two, and down, which is one."""
    inner: int
    """I; no address."""
    gate_routine: int
    """Of what gates experts and the shared one (`sums.gate_routine`)."""
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
    """S; 0: there is no shared expert, and nothing of it is read."""
    is_shared_gated: int
    """Whether the shared expert has a gate; no address."""


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


_ROUTE_FIELDS = len(RouteFields._fields)
_OWN_FIELDS = len(ExpertsFields._fields)
_MEMORY_FIELDS = len(ExpertsMemory._fields)


class ExpertsRoutines(NamedTuple):
    """Addresses of what the part calls beside products' inner loops and the gate."""

    route: int
    combine: int
    keep: int
    round: int


@cache
def experts_routines() -> ExpertsRoutines:
    """The same for every model."""
    return ExpertsRoutines(
        route_routine().address,
        combine_routine().address,
        sum_routine(adds=False).address,
        round_routine().address,
    )


class ExpertsRows(NamedTuple):
    """The rows that go to experts, and what becomes of them."""

    x: int
    """Address: [num_rows, h] of the weights' dtype"""
    num_rows: int
    hidden: int
    """h"""
    weight_size: int
    """Bytes of a number of x."""
    records: int
    """Of x; changed where there is a shared expert, whose inner rows they have to hold as well. 0:
    rows are not rounded."""
    target: int
    """Address: [num_rows, h] float32"""
    adds: int
    """Unless 0, results are added to the target, else written there."""


@njit(error_model="numpy")
def _run_shared(
    phase: int, num_threads: int, routines: ExpertsRoutines, panels: ProductRoutines, memory: int,
    own: ExpertsFields, work: ExpertsMemory, rows: ExpertsRows, following: int,
) -> None:  # fmt: skip
    """Three phases: shared_out = the shared expert's results."""
    size = rows.weight_size
    multiply(
        phase, num_threads, panels, own.gate_routine, memory, work.shared_gated,
        own.shared_inner * size, size, rows.x, rows.num_rows, rows.hidden * size // 4, rows.records,
        own.shared_gate, own.shared_up, own.shared_inner, own.shared_gate_bias, own.shared_up_bias,
        own.shared_down,
    )  # fmt: skip
    if rows.records != 0:
        round_rows(
            phase + PHASE_BYTES, routines.round, rows.records, work.shared_gated, rows.num_rows,
            own.shared_inner,
        )  # fmt: skip
    multiply(
        phase + 2 * PHASE_BYTES, num_threads, panels, routines.keep, memory, work.shared_out,
        rows.hidden * 4, _FLOAT_SIZE, work.shared_gated, rows.num_rows,
        own.shared_inner * size // 4, rows.records, own.shared_down, _NONE, rows.hidden,
        own.shared_down_bias, _NONE, following,
    )  # fmt: skip


@njit(error_model="numpy")
def _run_chosen(
    phase: int, routines: ExpertsRoutines, panels: ProductRoutines, memory: int,
    own: ExpertsFields, work: ExpertsMemory, rows: ExpertsRows, count: int, gate_up: Groups,
    down: Groups, following: int,
) -> None:  # fmt: skip
    """Three phases: out = the results of all experts, each with its rows."""
    size, stride = rows.weight_size, count * RECORD_BYTES
    multiply_grouped(
        phase, panels, memory, Target(own.gate_routine, work.gated, own.inner * size, size),
        Rows(work.gathered, count, rows.hidden * size // 4, work.records, stride), gate_up,
        first_used(down),
    )  # fmt: skip
    if work.records != 0:
        round_rows(phase + PHASE_BYTES, routines.round, work.records, work.gated, count, own.inner)
    multiply_grouped(
        phase + 2 * PHASE_BYTES, panels, memory,
        Target(routines.keep, work.out, rows.hidden * 4, _FLOAT_SIZE),
        Rows(work.gated, count, own.inner * size // 4, work.records, stride), down, following,
    )  # fmt: skip


@njit(error_model="numpy")
def experts(
    phase: int, num_threads: int, routines: ExpertsRoutines, panels: ProductRoutines, memory: int,
    fields: int, work_fields: int, rows: ExpertsRows, following: int,
) -> None:  # fmt: skip
    """A thread's share of a layer's experts: target = or += Σ weight · expert(x) + shared(x).

    phase: of `EXPERT_PHASES` that nobody has begun, the same for all threads; num_threads: how many
    those are. memory: `MEMORY_BYTES` of the thread's own. fields: address of `RouteFields` and
    `ExpertsFields`; work_fields: of `ExpertsMemory`, all changed. following: as for `multiply`.
    """
    how = RouteFields(*integers_at(fields, _ROUTE_FIELDS))
    own = ExpertsFields(*integers_at(fields + 8 * _ROUTE_FIELDS, _OWN_FIELDS))
    work = ExpertsMemory(*integers_at(work_fields, _MEMORY_FIELDS))
    num_logits = how.num_experts + (1 if own.is_shared_gated != 0 else 0)
    count = rows.num_rows * how.num_used
    has_shared = own.shared_inner != 0
    multiply(
        phase, num_threads, panels, routines.keep, memory, work.logits, num_logits * 4, _FLOAT_SIZE,
        rows.x, rows.num_rows, rows.hidden * rows.weight_size // 4, rows.records, own.router, _NONE,
        num_logits, own.router_bias, _NONE, own.shared_gate if has_shared else own.router,
    )  # fmt: skip
    route(
        phase + PHASE_BYTES, routines.route, work.chosen, work.weights, work.logits, num_logits,
        rows.num_rows, how.num_used, fields, memory,
    )  # fmt: skip
    group_rows(
        phase + 2 * PHASE_BYTES, work.starts, work.sources, work.places, work.chosen, rows.num_rows,
        how.num_used, how.num_experts, memory,
    )  # fmt: skip
    gather_rows(
        phase + 3 * PHASE_BYTES, work.gathered, rows.x, work.sources, count, rows.hidden,
        rows.weight_size, routines.round, work.records,
    )  # fmt: skip
    gate_up = Groups(
        own.table, EXPERT_BYTES, own.inner, how.num_experts, work.starts, how.num_used, num_threads
    )
    down = Groups(
        own.table + WEIGHT_BYTES, EXPERT_BYTES, rows.hidden, how.num_experts, work.starts,
        how.num_used, num_threads,
    )  # fmt: skip
    if has_shared:
        _run_shared(
            phase + 4 * PHASE_BYTES, num_threads, routines, panels, memory, own, work, rows,
            first_used(gate_up),
        )  # fmt: skip
    _run_chosen(
        phase + 7 * PHASE_BYTES, routines, panels, memory, own, work, rows, count, gate_up, down,
        following,
    )  # fmt: skip
    shared = Shared(
        work.shared_out if has_shared else 0,
        work.logits + how.num_experts * 4 if own.is_shared_gated != 0 else 0, num_logits,
    )  # fmt: skip
    combine(
        phase + 10 * PHASE_BYTES, routines.combine, rows.target, rows.adds, work.out, rows.num_rows,
        rows.hidden, work.places, work.weights, how.num_used, shared, memory,
    )  # fmt: skip
