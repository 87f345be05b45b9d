"""Which experts a row goes to, and with what weights.

    scores = softmax or sigmoid of the router's logits
    chosen = the highest of scores + correction, in the best groups of experts where there are some
    weights = scores of the chosen, divided by their sum where they are normalised, · scale

Of equal scores that of the lower number is higher. A row's experts depend on its logits alone, and
there are always as many as wanted, whatever the logits are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pagoda.kernels.cpu.activation import sigmoid
from pagoda.kernels.cpu.number import (
    LOG2_E,
    exp2,
    integer_at,
    integers_at,
    number_at,
    put_integer,
    put_number,
)
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.team import claim, finish

_ITEM_ROWS = 4
_FREE, _CHOSEN, _OUT = 0, 1, 2
_LEAST_SUM = np.float32(1e-20)
"""Beside the sum of weights, which sigmoids may leave at 0."""


class RouteFields(NamedTuple):
    """How rows are routed: a row of whole numbers."""

    num_experts: int
    num_used: int
    """Experts of each row."""
    uses_softmax: int
    """0: sigmoid"""
    is_normalised: int
    num_groups: int
    """Of as many experts each, one after the other."""
    num_used_groups: int
    group_top: int
    """1 or 2: a group's score is the sum of so many of its highest."""
    correction: int
    """Address: [num_experts] float32; or 0."""
    scale: int
    """Address: [1] float32"""


_NUM_FIELDS = len(RouteFields._fields)


def route_bytes(num_experts: int) -> int:
    """What routing needs of a thread's memory."""
    return 5 * 4 * num_experts


@njit(error_model="numpy")
def _put_scores(scores: int, logits: int, count: int, uses_softmax: int) -> None:
    if uses_softmax == 0:
        for i in range(count):
            put_number(scores, i, sigmoid(number_at(logits, i, False)), False)
        return
    highest = number_at(logits, 0, False)
    for i in range(1, count):
        highest = max(highest, number_at(logits, i, False))
    total = np.float32(0.0)
    for i in range(count):
        power = exp2((number_at(logits, i, False) - highest) * LOG2_E)
        put_number(scores, i, power, False)
        total += power
    for i in range(count):
        put_number(scores, i, number_at(scores, i, False) / total, False)


@njit(error_model="numpy")
def _choose(marks: int, values: int, count: int, wanted: int) -> None:
    """Mark the `wanted` highest of those that are free as chosen."""
    for _ in range(wanted):
        best, highest = -1, np.float32(0.0)
        for i in range(count):
            value = number_at(values, i, False)
            if integer_at(marks, i, 32) == _FREE and (best < 0 or value > highest):
                best, highest = i, value
        if best >= 0:
            put_integer(marks, best, _CHOSEN, 32)


@njit(error_model="numpy")
def _put_group_scores(scores: int, values: int, count: int, size: int, top: int) -> None:
    for group in range(count):
        highest, second = np.float32(-np.inf), np.float32(-np.inf)
        for i in range(group * size, (group + 1) * size):
            value = number_at(values, i, False)
            if value > highest:
                highest, second = value, highest
            elif value > second:
                second = value
        put_number(scores, group, highest + second if top == 2 else highest, False)


@njit(error_model="numpy")
def _leave_out_groups(fields: RouteFields, marks: int, values: int, memory: int) -> None:
    """Mark the experts of all but the best groups as out; memory: 8 bytes for each group."""
    count = fields.num_groups
    size, scores, chosen = fields.num_experts // count, memory, memory + count * 4
    _put_group_scores(scores, values, count, size, fields.group_top)
    for group in range(count):
        put_integer(chosen, group, _FREE, 32)
    _choose(chosen, scores, count, fields.num_used_groups)
    for i in range(fields.num_experts):
        if integer_at(chosen, i // size, 32) == _FREE:
            put_integer(marks, i, _OUT, 32)


@njit(error_model="numpy")
def _put_chosen(fields: RouteFields, scores: int, marks: int, chosen: int, weights: int) -> None:
    slot, total = 0, np.float32(0.0)
    for i in range(fields.num_experts):
        if integer_at(marks, i, 32) == _CHOSEN:
            put_integer(chosen, slot, i, 32)
            put_number(weights, slot, number_at(scores, i, False), False)
            total += number_at(scores, i, False)
            slot += 1
    scale = number_at(fields.scale, 0, False)
    for slot in range(fields.num_used):
        weight = number_at(weights, slot, False)
        if fields.is_normalised != 0:
            weight /= total + _LEAST_SUM
        put_number(weights, slot, weight * scale, False)


@cache
def route_routine() -> Any:
    """Compiles it or takes it from disk."""

    def route_rows(
        chosen: int, weights: int, logits: int, stride: int, rows: int, fields: int, memory: int
    ) -> None:
        """Experts of some rows in ascending order, and their weights; by addresses.

        chosen: [rows, num_used] int32; weights: [rows, num_used] float32; logits: float32,
        `stride` numbers from row to row; fields: `RouteFields`; memory: `route_bytes`.
        """
        own = RouteFields(*integers_at(fields, _NUM_FIELDS))
        size = own.num_experts * 4
        scores, values, marks, rest = memory, memory + size, memory + 2 * size, memory + 3 * size
        for r in range(rows):
            _put_scores(scores, logits + r * stride * 4, own.num_experts, own.uses_softmax)
            for i in range(own.num_experts):
                value = number_at(scores, i, False)
                if own.correction != 0:
                    value += number_at(own.correction, i, False)
                put_number(values, i, value, False)
                put_integer(marks, i, _FREE, 32)
            if own.num_used_groups < own.num_groups:
                _leave_out_groups(own, marks, values, rest)
            _choose(marks, values, own.num_experts, own.num_used)
            place = r * own.num_used * 4
            _put_chosen(own, scores, marks, chosen + place, weights + place)

    return compiled(route_rows, 7)


@njit(error_model="numpy")
def route(
    phase: int, routine: int, chosen: int, weights: int, logits: int, stride: int, rows: int,
    num_used: int, fields: int, memory: int,
) -> None:  # fmt: skip
    """A thread's share of routing all rows; see `route_routine`.

    phase: one that nobody has begun, the same for all threads.
    """
    total = (rows + _ITEM_ROWS - 1) // _ITEM_ROWS
    mine = 0
    item = claim(phase)
    while item < total:
        first = item * _ITEM_ROWS
        place = first * num_used * 4
        call(
            routine,
            (chosen + place, weights + place, logits + first * stride * 4, stride,
             min(_ITEM_ROWS, rows - first), fields, memory),
        )  # fmt: skip
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
