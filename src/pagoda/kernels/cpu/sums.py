"""What becomes of the sums of a product: kept, added to the stream, activated or gated."""

from __future__ import annotations

from functools import cache
from typing import Any

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.activation import ACTIVATIONS, GATES
from pagoda.kernels.cpu.number import number_at, put_number
from pagoda.kernels.cpu.routine import compiled

SUMS_BYTES = 4 * 2 * PANEL
"""From row to row of the sums of one item: two panels."""


@cache
def sum_routine(adds: bool, paired: bool = False) -> Any:
    """What `multiply` calls to keep the results as they are, or to add them to what is there.

    paired: out is bfloat16, else float32.
    """

    def put_sums(
        out: int, row_bytes: int, sums: int, rows: int, width: int, bias: int, second_bias: int
    ) -> None:
        """out = sums + bias, or out += sums + bias; from row to row `row_bytes`."""
        for r in range(rows):
            target, source = out + r * row_bytes, sums + r * SUMS_BYTES
            for c in range(width):
                value = number_at(source, c, False) + number_at(bias, c, False)
                if adds:
                    value += number_at(target, c, paired)
                put_number(target, c, value, paired)

    return compiled(put_sums, 7)


@cache
def gate_routine(paired: bool, activation: str) -> Any:
    """What `multiply` calls for the product with gate and up; for bfloat16, or float32.

    activation: one of `GATES`.
    """
    function = GATES[activation]

    def gate(
        out: int, row_bytes: int, sums: int, rows: int, width: int, bias: int, second_bias: int
    ) -> None:
        """out = what the activation makes of gate + bias and up + second_bias; of the dtype."""
        for r in range(rows):
            target, gates = out + r * row_bytes, sums + r * SUMS_BYTES
            ups = gates + PANEL * 4
            for c in range(width):
                x = number_at(gates, c, False) + number_at(bias, c, False)
                up = number_at(ups, c, False) + number_at(second_bias, c, False)
                put_number(target, c, function(x, up), paired)

    return compiled(gate, 7)


@cache
def activate_routine(paired: bool, activation: str) -> Any:
    """What `multiply` calls for the product with up where there is no gate; as `gate_routine`.

    activation: one of `ACTIVATIONS`.
    """
    function = ACTIVATIONS[activation]

    def activate(
        out: int, row_bytes: int, sums: int, rows: int, width: int, bias: int, second_bias: int
    ) -> None:
        """out = what the activation makes of sums + bias; of the dtype."""
        for r in range(rows):
            target, source = out + r * row_bytes, sums + r * SUMS_BYTES
            for c in range(width):
                x = number_at(source, c, False) + number_at(bias, c, False)
                put_number(target, c, function(x), paired)

    return compiled(activate, 7)
