"""The gate of gpt-oss: clamped, with a steeper sigmoid, and with 1 added to what it multiplies."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.activation import sigmoid
from pagoda.kernels.cpu.number import number_at, put_number
from pagoda.kernels.cpu.routine import compiled
from pagoda.kernels.cpu.sums import SUMS_BYTES

STEEPNESS, LIMIT = np.float32(1.702), np.float32(7.0)


@njit(error_model="numpy")
def clamped_swiglu(gate: np.float32, up: np.float32) -> np.float32:
    """gate · sigmoid(1.702 gate) · (up + 1), gate at most 7 and up from -7 to 7."""
    gate = min(gate, LIMIT)
    up = max(-LIMIT, min(up, LIMIT))
    return gate * sigmoid(STEEPNESS * gate) * (up + np.float32(1.0))


@cache
def clamped_gate_routine(paired: bool) -> Any:
    """As `gate_routine`."""

    def clamped_gate(
        out: int, row_bytes: int, sums: int, rows: int, width: int, bias: int, second_bias: int
    ) -> None:
        """out = clamped_swiglu(gate + bias, up + second_bias); out: of the routine's dtype."""
        for r in range(rows):
            target, gates = out + r * row_bytes, sums + r * SUMS_BYTES
            ups = gates + PANEL * 4
            for c in range(width):
                gate = number_at(gates, c, False) + number_at(bias, c, False)
                up = number_at(ups, c, False) + number_at(second_bias, c, False)
                put_number(target, c, clamped_swiglu(gate, up), paired)

    return compiled(clamped_gate, 7)
