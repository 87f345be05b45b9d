"""The product of few rows with a panel that keeps its type, decoded where it is multiplied.

    out[row, column] = Σ x[row, g] · panel[g, column]      in order of g

What one row or a few need of a panel goes from its codes to the sums through registers alone; more
rows read a decoded slice again and again (`multiply`). The order of sums is the same, so a row's
result does not depend on how many there are. For CPUs that multiply pairs of bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from numba.core import cgutils

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.stored_numbers import raised_by
from pagoda.kernels.cpu.stored_panels import Groups
from pagoda.kernels.cpu.stored_scales import Scales
from pagoda.kernels.cpu.stored_types import STORED_TYPES, StoredType
from pagoda.kernels.cpu.stored_words import SPAN, STEPS, TOGETHER, ask_ahead
from pagoda.kernels.cpu.sums import SUMS_BYTES
from pagoda.kernels.cpu.tile import Tile, for_each_row_count
from pagoda.kernels.cpu.vector import (
    BYTE,
    LANES,
    index,
    pointer,
    read_again,
    row_pointers,
)

_COLUMNS = range(0, PANEL, LANES)
"""Columns with which the vectors of a panel's row begin."""
FEW_ROWS = 8 if TOGETHER == 2 else 0
"""Most rows that are multiplied so; 0: none are."""


@cache
def few_rows_routine(name: str) -> Any:
    """For panels of a type. Compiles it or takes it from disk."""

    def multiply_few(out: int, x: int, depth: int, rows: int, panel: int, spans: int) -> None:
        """out[:rows, :PANEL] = x[:rows] · a panel of so many spans; by addresses.

        out: float32, `SUMS_BYTES` from row to row; x: bfloat16, `depth` groups from row to row.
        """
        _multiply_few((out, x, depth, rows, panel, spans), name)

    return compiled(multiply_few, 6)


@emitted
def _multiply_few(typing: Any, args: Any, name: Any) -> Any:
    stored = STORED_TYPES[name.literal_value]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, x, depth, rows, panel, spans = values
        panel = builder.inttoptr(panel, BYTE.as_pointer())
        out_rows = row_pointers(builder, pointer(builder, out), index(SUMS_BYTES // 4), FEW_ROWS)
        x_rows = row_pointers(builder, pointer(builder, x), depth, FEW_ROWS)

        def emit_rows(count: int) -> None:
            _Product(builder, stored, x_rows[:count], panel, spans).emit(out_rows[:count])

        for_each_row_count(builder, rows, FEW_ROWS, emit_rows)

    return routine_body(args, (name,), emit)


class _Product:
    """Emits the product of some rows with one panel."""

    def __init__(
        self, builder: Any, stored: StoredType, x_rows: list[Any], panel: Any, spans: Any
    ) -> None:
        self._builder, self._stored = builder, stored
        self._x_rows, self._panel, self._spans = x_rows, panel, spans
        self._tiles = {column: Tile(builder, True, len(x_rows), [LANES]) for column in _COLUMNS}
        self._scales = Scales(builder, stored, PANEL, raised_by(stored))

    def emit(self, out_rows: list[Any]) -> None:
        """Write the sums to pointers to their rows."""
        builder, stored = self._builder, self._stored
        spans = index(stored.block_values // SPAN)
        with cgutils.for_range(builder, builder.udiv(self._spans, spans)) as blocks:
            size = index(PANEL * stored.block_bytes)
            block = builder.gep(self._panel, [builder.mul(blocks.index, size)])
            for column in _COLUMNS:
                self._scales.prepare(builder.gep(block, [index(column)]), index(column))
            start = builder.mul(blocks.index, spans)
            with cgutils.for_range(builder, spans) as each:
                for column in _COLUMNS:
                    self._add_span(block, column, each.index, builder.add(start, each.index))
        for column, tile in self._tiles.items():
            tile.store([builder.gep(row, [index(column)]) for row in out_rows])

    def _add_span(self, block: Any, column: int, span: Any, number: Any) -> None:
        """Add a block's span to the sums of the columns from `column` on.

        number: which it is of the panel's.
        """
        builder = self._builder
        groups = Groups(builder, self._stored, self._scales, block, index(column), span)
        if len(self._x_rows) > 1:
            ask_ahead(builder, self._stored, block, index(column), span)
        first = builder.mul(number, index(STEPS))
        for step in range(STEPS):
            group = builder.add(first, index(step))
            read_again(builder)  # or numbers of later rows wait in registers that there are not
            x = [builder.gep(row, [group]) for row in self._x_rows]
            self._tiles[column].add(x, [groups.of(step)])
