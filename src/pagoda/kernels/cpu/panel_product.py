"""The product with weights in panels, a few rows at a time, as routines.

They are made of `tile.Tile`, which says in which order is summed. They take addresses, and strides
from row to row in groups of four bytes, one float32 or two bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from numba.core import cgutils

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import (
    MOST_VECTORS,
    Tile,
    for_each_row_count,
    most_rows,
    vector_lanes,
    vectors,
)
from pagoda.kernels.cpu.vector import LANES, after, index, pointer, prefetch, row_pointers

PANEL_ROWS = most_rows(PANEL // LANES)
"""Most rows that are multiplied with one panel at once."""
TILE_COLUMNS = MOST_VECTORS * LANES
"""Columns of a tile of more rows: two panels, or half a one."""
TILE_ROWS = most_rows(MOST_VECTORS)
"""Most rows of such a tile."""
STRIPS = 2 * PANEL // TILE_COLUMNS
"""Tiles side by side in two panels."""
STRIP_LINES = 4 // STRIPS
"""Of the four lines that a group takes in the next two panels, those asked for in one strip."""
_LINE_GROUPS = 16


class PanelRoutines(NamedTuple):
    """Addresses of `multiply_panels` for numbers of columns and of lines that are asked for."""

    column: int
    """One column of a panel."""
    panel: int
    """A panel, 2 lines with every group."""
    tile: int
    """`TILE_COLUMNS`, none asked for."""
    tile_line: int
    """`TILE_COLUMNS`, 1 line with every group."""
    tile_lines: int
    """`TILE_COLUMNS`, 2 lines with every group, or `STRIP_LINES`."""


@cache
def panel_routines(paired: bool, *, asks: bool = True) -> PanelRoutines:
    """For bfloat16, which come in pairs, or float32. Compiles them or takes them from disk.

    Without `asks` they ask nothing from memory.
    """
    lines = [asked if asks else 0 for asked in (0, 2, 0, min(1, STRIP_LINES), min(2, STRIP_LINES))]
    columns = (1, PANEL, *[TILE_COLUMNS] * 3)
    shapes = zip(columns, lines, strict=True)
    return PanelRoutines(*(_panel_routine(paired, *shape).address for shape in shapes))


@cache
def _panel_routine(paired: bool, columns: int, lines: int) -> Any:
    def multiply_panels(
        out: int, out_stride: int, x: int, x_stride: int, first: int, second: int, stride: int,
        depth: int, ahead: int, rows: int, goes_on: int,
    ) -> None:  # fmt: skip
        """out[:rows, :columns] = x[:rows] · panels, or, if it goes on, += that.

        out: float32. first, second: panels [depth, stride] in groups, of which the second is
        there with two panels' columns; depth: in groups. `lines` cache lines from `ahead` on are
        asked from memory meanwhile with every group of the depth. A product that goes on is, bit
        for bit, the one of both parts of the depth.
        """
        _multiply_panels(
            (out, out_stride, x, x_stride, first, second, stride, depth, ahead, rows, goes_on),
            paired, columns, lines,
        )  # fmt: skip

    return compiled(multiply_panels, 11)


@emitted
def _multiply_panels(typing: Any, args: Any, paired: Any, columns: Any, lines: Any) -> Any:
    lanes = vector_lanes(min(columns.literal_value, PANEL))
    panels = max(1, columns.literal_value // PANEL)
    num_lines = lines.literal_value

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, out_stride, x, x_stride, *bases, stride, depth, ahead, rows, goes_on = values
        bases = [pointer(builder, address) for address in bases[:panels]]
        ahead = pointer(builder, ahead)

        def emit_rows(count: int) -> None:
            tile = Tile(builder, paired.literal_value, count, lanes * panels)
            x_rows = row_pointers(builder, pointer(builder, x), x_stride, count)
            out_rows = row_pointers(builder, pointer(builder, out), out_stride, count)
            with builder.if_then(builder.icmp_signed("!=", goes_on, index(0)), likely=False):
                tile.load(out_rows)
            with cgutils.for_range(builder, depth) as loop:
                line = builder.mul(loop.index, index(num_lines * _LINE_GROUPS))
                for number in range(num_lines):
                    prefetch(builder, after(builder, ahead, line, number * _LINE_GROUPS))
                offset = builder.mul(loop.index, stride)
                tile.add(
                    [builder.gep(row, [loop.index]) for row in x_rows],
                    [
                        after(builder, base, offset, column)
                        for base in bases
                        for column, _ in vectors(lanes)
                    ],
                )
            tile.store(out_rows)

        for_each_row_count(builder, rows, most_rows(len(lanes) * panels), emit_rows)

    return routine_body(args, (paired, columns, lines), emit)
