"""Rows times a square matrix, in place: the change of basis that a codec asks for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from numba.core import cgutils

from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import (
    Columns,
    Tile,
    chunks,
    for_each_tile,
    most_rows,
    vector_lanes,
    vectors,
)
from pagoda.kernels.cpu.vector import after, index, pointer, row_pointers


@cache
def turn_routine(width: int) -> Any:
    """For rows of so many numbers."""

    def turn_rows(x: int, stride: int, matrix: int, rows: int, memory: int) -> None:
        """x[row] = x[row] · matrix.

        x: [rows, width], changed, each row `stride` numbers after the one before it; matrix:
        [width, width]; memory: [rows, width]; all float32. A row's result is its own, whatever
        rows there are beside it.
        """
        _turn_rows((x, stride, matrix, rows, memory), width)

    return compiled(turn_rows, 5)


@emitted
def _turn_rows(typing: Any, args: Any, width: Any) -> Any:
    size = width.literal_value

    def emit(builder: Any, values: Sequence[Any]) -> None:
        x, stride, matrix, rows, memory = values
        source, target, base = (pointer(builder, each) for each in (x, memory, matrix))

        def rows_of(start: Any, stride: Any, first: Any, count: int) -> list[Any]:
            place = builder.gep(start, [builder.mul(first, stride)])
            return row_pointers(builder, place, stride, count)

        def emit_tile(count: int, first: Any, start: Any, columns: Columns) -> None:
            x_rows = rows_of(source, stride, first, count)
            out_rows = rows_of(target, index(size), first, count)
            tile = Tile(builder, False, count, [lanes for _, lanes in columns])
            with cgutils.for_range(builder, index(size)) as loop:
                line = builder.add(builder.mul(loop.index, index(size)), start)
                tile.add(
                    [builder.gep(each, [loop.index]) for each in x_rows],
                    [after(builder, base, line, column) for column, _ in columns],
                )
            tile.store([builder.gep(each, [start]) for each in out_rows])

        for column, number, lanes in chunks(vector_lanes(size)):
            columns, step = vectors(lanes), sum(lanes)
            with cgutils.for_range(builder, index(number)) as loop:
                start = builder.add(index(column), builder.mul(loop.index, index(step)))
                emit_columns = partial(emit_tile, start=start, columns=columns)
                for_each_tile(builder, rows, most_rows(len(lanes)), emit_columns)
        with cgutils.for_range(builder, rows) as each:
            row = builder.gep(source, [builder.mul(each.index, stride)])
            turned = builder.gep(target, [builder.mul(each.index, index(size))])
            with cgutils.for_range(builder, index(size)) as loop:
                value = builder.load(builder.gep(turned, [loop.index]))
                builder.store(value, builder.gep(row, [loop.index]))

    return routine_body(args, (width,), emit)
