"""The product of rows with weights of which each has its own rows: experts'.

Only weights that have rows are read. An item is as in `multiply`: one panel or two of one weight,
with all of its rows or some of them. So all threads are at work also where there is one row in all.
Each has a run of items, that is whole experts where these are many.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.multiply import (
    ProductRoutines,
    chunk_rows,
    multiply_item,
    panels_at_once,
    panels_from,
    panels_of_item,
)
from pagoda.kernels.cpu.number import integer_at, integers_at, put_integer
from pagoda.kernels.cpu.operands import Rows, Target, Weight, rows_from
from pagoda.kernels.cpu.panel_product import PANEL_ROWS
from pagoda.kernels.cpu.panels import ENTRY_BYTES
from pagoda.kernels.cpu.team import Team, claim_near, finish, first_of_run

_TOTAL = 16
"""Of a phase's 32-bit numbers, one in a cache line that `team` leaves alone."""


class GroupedWeight(NamedTuple):
    """One of the weights: as `Weight`, without the width that they share; addresses."""

    first: int
    second: int
    bias: int
    second_bias: int


_NUM_FIELDS = len(GroupedWeight._fields)
WEIGHT_BYTES = 8 * _NUM_FIELDS


class Groups(NamedTuple):
    """The weights, and which rows are whose."""

    weights: int
    """Address of the first `GroupedWeight`."""
    weight_stride: int
    """Bytes from one to the next."""
    width: int
    """Columns of each."""
    num_weights: int
    """How many there are."""
    starts: int
    """Address: [num_weights + 1] int32, the first row of each, and the number of rows."""
    least_used: int
    """How many have rows, at least."""
    num_threads: int


class _Share(NamedTuple):
    """The items of one weight."""

    start: int
    """Of its rows."""
    num_rows: int
    step: int
    """Panels of an item."""
    chunk: int
    """Rows of an item."""
    num_chunks: int
    num_items: int


class _Place(NamedTuple):
    """Where an item is: of which weight, and how many items those before it have."""

    number: int
    before: int


@njit(error_model="numpy")
def _weight(groups: Groups, number: int) -> Weight:
    place = groups.weights + number * groups.weight_stride
    own = GroupedWeight(*integers_at(place, _NUM_FIELDS))
    return Weight(own.first, own.second, groups.width, own.bias, own.second_bias)


@njit(error_model="numpy")
def _share(groups: Groups, number: int) -> _Share:
    start = integer_at(groups.starts, number, 32)
    rows = integer_at(groups.starts, number + 1, 32) - start
    if rows == 0:
        return _Share(start, 0, 1, 1, 0, 0)
    weight = _weight(groups, number)
    step = panels_at_once(weight, rows)
    columns = ((groups.width + PANEL - 1) // PANEL + step - 1) // step
    chunk = chunk_rows(weight, rows, columns * groups.least_used, groups.num_threads)
    chunks = (rows + chunk - 1) // chunk
    return _Share(start, rows, step, chunk, chunks, columns * chunks)


@njit(error_model="numpy")
def _find(groups: Groups, item: int, place: _Place) -> _Place:
    """Of an item that comes at `place` or later; the count of weights if there is none such."""
    number, before = place.number, place.before
    while number < groups.num_weights:
        size = _share(groups, number).num_items
        if item < before + size:
            break
        before += size
        number += 1
    return _Place(number, before)


@njit(error_model="numpy")
def count_items(phase: int, groups: Groups) -> None:
    """Put the number of items beside a phase's counters, before any thread begins it.

    A thread that comes late, when a later layer has sorted its own rows, must not count these.
    """
    put_integer(phase, _TOTAL, _find(groups, 1 << 62, _Place(0, 0)).before, 32)


@njit(error_model="numpy")
def _column(groups: Groups, item: int, place: _Place) -> int:
    """Which panel an item begins with, of its weight's."""
    share = _share(groups, place.number)
    return (item - place.before) // share.num_chunks * share.step


@njit(error_model="numpy")
def entry_of_items(team: Team, phase: int, groups: Groups) -> int:
    """The entry of the panel that a thread begins with; `count_items` has counted the phase's.

    To a thread that comes late it means nothing.
    """
    item = first_of_run(team, team.thread, integer_at(phase, _TOTAL, 32))
    place = _find(groups, item, _Place(0, 0))
    if place.number == groups.num_weights:
        return groups.weights
    return _weight(groups, place.number).first + _column(groups, item, place) * ENTRY_BYTES


@njit(error_model="numpy")
def multiply_grouped(
    phase: int, team: Team, routines: ProductRoutines, memory: int, target: Target, rows: Rows,
    groups: Groups, following: int,
) -> None:  # fmt: skip
    """A thread's share of the products of all rows, each with the weight that it is of.

    phase: one that nobody has begun, the same for all threads. memory: `MEMORY_BYTES` of the
    thread's own. `count_items` has counted its items. rows: all, those of each weight one after the
    other. target: of the first row.
    following: as for `multiply`. A row's product is, bit for bit, what `multiply` makes of it.
    """
    total = integer_at(phase, _TOTAL, 32)
    mine = 0
    item = claim_near(team, phase, total)
    here = _find(groups, item, _Place(0, 0))
    while item < total:
        upcoming = claim_near(team, phase, total)
        ahead, there = panels_from(following), here
        if upcoming < total:
            there = _find(groups, upcoming, here if upcoming > item else _Place(0, 0))
            column = _column(groups, upcoming, there)
            ahead = panels_of_item(_weight(groups, there.number), column)
        share, number = _share(groups, here.number), item - here.before
        start = number % share.num_chunks * share.chunk
        count = min(share.chunk, share.num_rows - start)
        first = share.start + start
        multiply_item(
            routines, memory, rows_from(rows, first, count), _weight(groups, here.number),
            Target(target.use, target.out + first * target.row_bytes, target.row_bytes,
                   target.item_size),
            number // share.num_chunks * share.step, share.num_rows > PANEL_ROWS, ahead,
        )  # fmt: skip
        mine += 1
        item, here = upcoming, there
    finish(phase, mine, total)
