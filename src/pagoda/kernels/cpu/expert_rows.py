"""Rows in the order of their experts: each expert's lie one after the other.

A row that goes to several experts is there for each. Rows of one expert keep their order.
"""

from __future__ import annotations

from numba import njit

from pagoda.kernels.cpu.grouped_product import Groups, count_items
from pagoda.kernels.cpu.int8_rows import round_some
from pagoda.kernels.cpu.number import integer_at, put_integer
from pagoda.kernels.cpu.team import claim, finish

_ITEM_ROWS = 4


@njit(error_model="numpy")
def _sort(
    starts: int, sources: int, places: int, chosen: int, count: int, num_used: int,
    num_experts: int, memory: int,
) -> None:  # fmt: skip
    for expert in range(num_experts):
        put_integer(memory, expert, 0, 32)
    for i in range(count):
        expert = integer_at(chosen, i, 32)
        put_integer(memory, expert, integer_at(memory, expert, 32) + 1, 32)
    start = 0
    for expert in range(num_experts):
        size = integer_at(memory, expert, 32)
        put_integer(starts, expert, start, 32)
        put_integer(memory, expert, start, 32)
        start += size
    put_integer(starts, num_experts, start, 32)
    for i in range(count):
        expert = integer_at(chosen, i, 32)
        place = integer_at(memory, expert, 32)
        put_integer(memory, expert, place + 1, 32)
        put_integer(sources, place, i // num_used, 32)
        put_integer(places, i, place, 32)


@njit(error_model="numpy")
def group_rows(
    phase: int, starts: int, sources: int, places: int, chosen: int, rows: int, num_used: int,
    num_experts: int, memory: int, gate_up_phase: int, gate_up: Groups, down_phase: int,
    down: Groups,
) -> None:  # fmt: skip
    """Sort rows by their experts; whichever thread comes first does it, the others wait.

    It counts the items of the two products, which read `starts`, too.

    phase: one that nobody has begun, the same for all threads. By addresses, all int32: starts:
    [num_experts + 1], the place of each expert's first row, and rows · num_used; sources:
    [rows · num_used], the row in each place; places: [rows, num_used], where each row is for each
    of its `chosen`, of the same shape. memory: 4 bytes for each expert.
    """
    mine = 0
    if claim(phase) == 0:
        _sort(starts, sources, places, chosen, rows * num_used, num_used, num_experts, memory)
        count_items(gate_up_phase, gate_up)
        count_items(down_phase, down)
        mine = 1
    finish(phase, mine, 1)


@njit(error_model="numpy")
def gather_rows(
    phase: int, out: int, x: int, sources: int, count: int, width: int, item_size: int,
    rounding: int, records: int,
) -> None:  # fmt: skip
    """A thread's share of out[i] = x[sources[i]].

    phase: one that nobody has begun, the same for all threads. By addresses: out: [count, width]
    and x: [any, width] of numbers of `item_size` bytes, rows of whole four bytes; sources:
    [count] int32. records: of out's rows, written by `rounding`, a `round_routine`; 0: they are not
    rounded.
    """
    total = (count + _ITEM_ROWS - 1) // _ITEM_ROWS
    row_bytes = width * item_size
    mine = 0
    item = claim(phase)
    while item < total:
        first = item * _ITEM_ROWS
        size = min(_ITEM_ROWS, count - first)
        for i in range(first, first + size):
            target, source = out + i * row_bytes, x + integer_at(sources, i, 32) * row_bytes
            for group in range(row_bytes // 4):
                put_integer(target, group, integer_at(source, group, 32), 32)
        if records != 0:
            round_some(rounding, records, out, first, size, count, width)
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
