"""The product of few rows with a panel that keeps its type, decoded where it is multiplied.

    out[row, column] = Σ x[row, g] · panel[g, column]      in order of g

What one row or a few need of a panel goes from its codes to the sums through registers alone; more
rows read a decoded slice again and again (`multiply`). The order of sums is the same, so a row's
result does not depend on how many there are. Where a CPU does not multiply pairs of bfloat16, a
span of the rows is widened to float32 first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.number import emitted, widened
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.stored_numbers import raised_by
from pagoda.kernels.cpu.stored_panels import Groups
from pagoda.kernels.cpu.stored_scales import Scales
from pagoda.kernels.cpu.stored_types import STORED_TYPES, StoredType
from pagoda.kernels.cpu.stored_words import SPAN, STEPS, TOGETHER, Blocks, ask_codes, ask_head
from pagoda.kernels.cpu.sums import SUMS_BYTES
from pagoda.kernels.cpu.tile import Tile, for_each_row_count
from pagoda.kernels.cpu.vector import (
    I32,
    LANES,
    LINE_BYTES,
    UNIT,
    index,
    load_vector,
    opaque,
    pointer,
    read_again,
    row_pointers,
    store_vector,
)

_COLUMNS = range(0, PANEL, LANES)
"""Columns with which the vectors of a panel's row begin."""
FEW_ROWS = 8 if TOGETHER == 2 else 2 if UNIT.registers >= 8 else 0
"""Most rows that are multiplied so; 0: none are, where registers hold no row of a panel."""
_FEW_SUMS = 4
"""Most rows whose sums are so few that each waits for its last step: those of other columns should
be added meanwhile."""
_IN_TURN, _FEW_IN_TURN = (STEPS, 2) if TOGETHER == 2 else (16, 16)
"""Steps of some columns before those of others, with more rows and with so few."""


@cache
def few_rows_routine(name: str) -> Any:
    """For panels of a type. Compiles it or takes it from disk."""

    def multiply_few(
        out: int, x: int, depth: int, rows: int, panel: int, spans: int, following: int
    ) -> None:
        """out[:rows, :PANEL] = x[:rows] · a panel of so many spans; by addresses.

        out: float32, `SUMS_BYTES` from row to row; x: bfloat16, `depth` groups from row to row;
        following: the panel that is read next.
        """
        _multiply_few((out, x, depth, rows, panel, spans, following), name)

    return compiled(multiply_few, 7)


@emitted
def _multiply_few(typing: Any, args: Any, name: Any) -> Any:
    stored = STORED_TYPES[name.literal_value]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, x, depth, rows, panel, spans, following = values
        blocks = Blocks(builder, stored, panel, spans, following)
        out_rows = row_pointers(builder, pointer(builder, out), index(SUMS_BYTES // 4), FEW_ROWS)
        x_rows = row_pointers(builder, pointer(builder, x), depth, FEW_ROWS)

        def emit_rows(count: int) -> None:
            _Product(builder, stored, x_rows[:count], blocks).emit(out_rows[:count])

        for_each_row_count(builder, rows, FEW_ROWS, emit_rows)

    return routine_body(args, (name,), emit)


class _Product:
    """Emits the product of some rows with one panel."""

    def __init__(self, builder: Any, stored: StoredType, x_rows: list[Any], blocks: Blocks) -> None:
        self._builder, self._stored = builder, stored
        self._x_rows, self._blocks = x_rows, blocks
        self._tiles = {
            column: Tile(builder, TOGETHER == 2, len(x_rows), [LANES]) for column in _COLUMNS
        }
        self._scales = Scales(builder, stored, PANEL, raised_by(stored))
        self._wide_rows = [_WideSpan(builder) for _ in x_rows] if TOGETHER == 1 else []

    def emit(self, out_rows: list[Any]) -> None:
        """Write the sums to pointers to their rows."""
        builder, stored = self._builder, self._stored
        spans = index(stored.block_values // SPAN)
        with cgutils.for_range(builder, self._blocks.count) as blocks:
            block, asked = self._blocks.at(blocks.index)
            ask_head(builder, stored, asked)
            for column in _COLUMNS:
                self._scales.prepare(builder.gep(block, [index(column)]), index(column))
            start = builder.mul(blocks.index, spans)
            with cgutils.for_range(builder, spans) as each:
                self._add_span(block, asked, each.index, builder.add(start, each.index))
        for column, tile in self._tiles.items():
            tile.store([builder.gep(row, [index(column)]) for row in out_rows])

    def _add_span(self, block: Any, asked: Any, span: Any, number: Any) -> None:
        """Add a block's span to the sums; number: which it is of the panel's."""
        builder, stored = self._builder, self._stored
        groups: dict[int, Groups] = {}
        rows, begin = self._x_rows, None
        size = _FEW_IN_TURN if len(rows) <= _FEW_SUMS else _IN_TURN
        for turn in range(0, STEPS, size):
            for column, tile in self._tiles.items():
                if turn == 0:
                    place = index(column)
                    groups[column] = Groups(builder, stored, self._scales, block, place, span)
                    ask_codes(builder, stored, asked, place, span)
                if begin is None:
                    rows, begin = self._span_of_rows(number)
                for step in range(turn, turn + size):
                    group = builder.add(begin, index(step))
                    read_again(builder)  # or rows wait in registers that there are not
                    tile.add([builder.gep(row, [group]) for row in rows], [groups[column].of(step)])

    def _span_of_rows(self, number: Any) -> tuple[list[Any], Any]:
        """Pointers for the rows, and the place after them where the groups of a span begin."""
        builder = self._builder
        if not self._wide_rows:
            return self._x_rows, builder.mul(number, index(STEPS))
        pairs = builder.mul(number, index(SPAN // 2))
        for wide, row in zip(self._wide_rows, self._x_rows, strict=True):
            wide.fill(builder.gep(row, [pairs]))
        return [wide.memory for wide in self._wide_rows], index(0)


class _WideSpan:
    """A span of a row as float32, on the stack."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        memory = cgutils.alloca_once(builder, I32, size=SPAN)
        memory.align = LINE_BYTES
        # LLVM must not know what is there, or takes numbers out of the registers they came from.
        self.memory = opaque(builder, memory)

    def fill(self, source: Any) -> None:
        """Widen the bfloat16 from a pointer on."""
        builder, halves = self._builder, ir.VectorType(ir.IntType(16), LANES)
        for first in range(0, SPAN, LANES):
            pairs = builder.gep(source, [index(first // 2)])
            values = widened(builder, load_vector(builder, pairs, halves))
            store_vector(builder, values, builder.gep(self.memory, [index(first)]))
