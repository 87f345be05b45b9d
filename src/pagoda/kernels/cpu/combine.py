"""What experts made of rows, weighted and summed, each row's in ascending order of experts."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pagoda.kernels.cpu.activation import sigmoid
from pagoda.kernels.cpu.number import fma, integer_at, number_at, put_number
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.team import claim, finish

_COLUMNS = 512
"""Of an item."""
COMBINE_BYTES = 4 * _COLUMNS
"""What combining needs of a thread's memory."""


class Shared(NamedTuple):
    """What the shared expert made of the rows."""

    out: int
    """Address: [rows, width] float32; 0: there is none."""
    gates: int
    """Address of the first row's logit, whose sigmoid it is multiplied with; 0: it is not."""
    gate_stride: int
    """Numbers from row to row."""


@cache
def combine_routine() -> Any:
    """Compiles it or takes it from disk."""

    def combine_row(
        target: int, adds: int, out: int, width: int, places: int, weights: int, num_used: int,
        count: int, shared: int, gate: int, memory: int,
    ) -> None:  # fmt: skip
        """`count` columns of a row = or += Σ weights[i] · out[places[i]], + its share of `shared`.

        By addresses: target: of the columns, float32; out: of the columns in the first row,
        [any, width] float32; places, weights: [num_used] int32 and float32; shared: of the
        columns, float32, or 0; gate: of the logit whose sigmoid multiplies it, or 0; memory:
        `COMBINE_BYTES`.
        """
        for c in range(count):
            put_number(memory, c, np.float32(0.0), False)
        for i in range(num_used):
            weight, source = (
                number_at(weights, i, False),
                out + integer_at(places, i, 32) * width * 4,
            )
            for c in range(count):
                value = fma(weight, number_at(source, c, False), number_at(memory, c, False))
                put_number(memory, c, value, False)
        if shared != 0:
            weight = np.float32(1.0)
            if gate != 0:
                weight = sigmoid(number_at(gate, 0, False))
            for c in range(count):
                value = fma(weight, number_at(shared, c, False), number_at(memory, c, False))
                put_number(memory, c, value, False)
        for c in range(count):
            value = number_at(memory, c, False)
            if adds != 0:
                value += number_at(target, c, False)
            put_number(target, c, value, False)

    return compiled(combine_row, 11)


@njit(error_model="numpy")
def combine(
    phase: int, routine: int, target: int, adds: int, out: int, rows: int, width: int, places: int,
    weights: int, num_used: int, shared: Shared, memory: int,
) -> None:  # fmt: skip
    """A thread's share of combining all rows; see `combine_routine`.

    phase: one that nobody has begun, the same for all threads. target: [rows, width] float32;
    places, weights: [rows, num_used].
    """
    slices = (width + _COLUMNS - 1) // _COLUMNS
    total = rows * slices
    mine = 0
    item = claim(phase)
    while item < total:
        row, column = item // slices, item % slices * _COLUMNS
        start, place = (row * width + column) * 4, row * num_used * 4
        call(
            routine,
            (target + start, adds, out + column * 4, width, places + place, weights + place,
             num_used, min(_COLUMNS, width - column),
             shared.out + start if shared.out != 0 else 0,
             shared.gates + row * shared.gate_stride * 4 if shared.gates != 0 else 0, memory),
        )  # fmt: skip
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
