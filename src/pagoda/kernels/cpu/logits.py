"""What is done to logits before anything is drawn from them."""

from __future__ import annotations

from numba import njit

from pagoda.kernels.cpu.number import number_at, put_number, tanh
from pagoda.kernels.cpu.team import claim, finish

_ITEM_VALUES = 4096


@njit(error_model="numpy")
def adjust_logits(phase: int, logits: int, rows: int, width: int, scale: int, cap: int) -> None:
    """A thread's share of logits = cap · tanh(logits · scale / cap), all float32 at addresses.

    phase: one that nobody has begun, the same for all threads. logits: [rows, width], changed;
    scale: [1]; cap: [1], or at 0: there is none.
    """
    size = rows * width
    total = (size + _ITEM_VALUES - 1) // _ITEM_VALUES
    factor = number_at(scale, 0, False)
    mine = 0
    item = claim(phase)
    while item < total:
        first, last = item * _ITEM_VALUES, min((item + 1) * _ITEM_VALUES, size)
        if cap == 0:
            for i in range(first, last):
                put_number(logits, i, number_at(logits, i, False) * factor, False)
        else:
            most = number_at(cap, 0, False)
            for i in range(first, last):
                value = tanh(number_at(logits, i, False) * factor / most) * most
                put_number(logits, i, value, False)
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
