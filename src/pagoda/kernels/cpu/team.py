"""How the threads of one step share work: they claim items in turn, and wait for one another.

A step is a row of phases. In each, every thread takes the next item when it is done with one, and
when none is left waits until all are done. Whoever comes late finds less to do or nothing: a step
is finished by any number of threads, one included, in whatever order they run. That is why a
core that is busy with something else costs its share and the item it was working on.

Where items read memory one behind the other, as panels of a weight, each thread begins with a run
of them of its own (`claim_near`). Two threads that take turns would fetch ahead into each other's
items, and memory gives less to readers that are near one another: it was a tenth to a third less.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import register_jitable

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import emitted

PHASE_BYTES = 256
"""From the counters of one phase to the next: two pairs of cache lines."""
_DONE = 16
_PLACE_SHIFT = 32
"""A word of a place: above this bit how far the phase is behind the places, in bytes; below it how
many of a run's items have been taken."""
_signed: Any = np.int64
_PATIENCE = 50_000
"""Looks at a counter before the core is offered to somebody else."""


class Team(NamedTuple):
    """The threads that share a step, as one of them sees them; see `team_of`."""

    thread: int
    """Which it is."""
    num_threads: int
    places: int
    """Address: how far each thread's run of items is taken, `PHASE_BYTES` from one to the next."""


@register_jitable(error_model="numpy")
def team_of(thread: int, num_threads: int, places: int) -> Team:
    """Of a thread of a parallel loop.

    Loops count without a sign, for which Numba would compile what takes a team once more.
    """
    return Team(_signed(thread), _signed(num_threads), _signed(places))


def phases(count: int, num_threads: int = 0) -> Array:
    """Counters of so many phases that nobody has begun: [num_threads + count, any] int64.

    The `places` of a `Team` of so many threads come first; without any, items are claimed by
    `claim` alone.
    """
    return np.zeros((num_threads + count, PHASE_BYTES // 8), np.int64)


@register_jitable(error_model="numpy")
def first_phase(places: int, num_threads: int) -> int:
    """Address of the first phase behind the places of so many threads."""
    return places + num_threads * PHASE_BYTES


@njit(error_model="numpy")
def claim(phase: int) -> int:
    """The number of an item that no other thread has got; past the last one nothing is left.

    phase: address of its counters.
    """
    return _add(phase, 0, 1)


@njit(error_model="numpy")
def first_of_run(team: Team, thread: int, total: int) -> int:
    """The first item of a thread's run, of `total` that are shared out."""
    return total * thread // team.num_threads


@njit(error_model="numpy")
def claim_near(team: Team, phase: int, total: int) -> int:
    """As `claim`, of `total` items, but the next of a thread's own run as long as there is one.

    When its run is done it takes what is left of the others', so that all are busy to the end.
    Items of a phase are claimed by this or by `claim`, not by both.
    """
    here = (phase - team.places) << _PLACE_SHIFT
    for turn in range(team.num_threads):
        owner = (team.thread + turn) % team.num_threads
        place = team.places + owner * PHASE_BYTES
        first, end = first_of_run(team, owner, total), first_of_run(team, owner + 1, total)
        seen = _read(place, 0)
        while True:
            word = max(seen, here)  # of an earlier phase, none is taken yet
            item = first + word - here
            if item >= end:  # or a later phase has begun, whose words are larger by far
                break
            found = _replace(place, seen, word + 1)
            if found == seen:
                return item
            seen = found
    return total


@njit(error_model="numpy")
def finish(phase: int, mine: int, total: int) -> None:
    """Say how many items this thread has done, and wait until all `total` are done.

    What other threads wrote before is then there to be read.
    """
    if mine > 0:
        _add(phase, _DONE, mine)
    looks = 0
    while _read(phase, _DONE) < total:
        looks += 1
        _pause()
        if looks % _PATIENCE == 0:
            _offer_core()


@emitted
def _add(typing: Any, phase: Any, place: Any, amount: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(builder, args)
        return builder.atomic_rmw("add", pointer, args[2], "acq_rel")

    return types.intp(types.intp, types.intp, types.intp), emit


@emitted
def _replace(typing: Any, place: Any, seen: Any, word: Any) -> Any:
    """Put a word where `seen` is, if it still is; what was there."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        outcome = builder.cmpxchg(pointer, args[1], args[2], "acq_rel", "acquire")
        return builder.extract_value(outcome, 0)

    return types.intp(types.intp, types.intp, types.intp), emit


@emitted
def _read(typing: Any, phase: Any, place: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args), "acquire", 8)

    return types.intp(types.intp, types.intp), emit


def _pointer(builder: Any, args: Any) -> Any:
    return builder.gep(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), [args[1]])


@emitted
def _pause(typing: Any) -> Any:
    """Tell the core that it only waits."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        triple = llvm.get_process_triple()
        if triple.startswith("x86_64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        elif triple.startswith(("aarch64", "arm64")):
            hint = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [hint])
            name = "llvm.aarch64.hint"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [hint(1)])
        return context.get_dummy_value()

    return types.void(), emit


@emitted
def _offer_core(typing: Any) -> Any:
    """Let another thread or program have the core, if one wants it."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if llvm.address_of_symbol("sched_yield"):
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), emit
