"""Weights in panels, the order in which a product reads them.

A panel is 32 rows of a weight [out, in], that is 32 columns of the product, turned so that a
product runs through it from end to end. With groups of four bytes, one float32 or two bfloat16:

    [in / group][32][group]

The last panel of a weight may have fewer rows. A weight takes the same memory in either form.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.activation import silu
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.number import integer_at, number_at, put_number
from pagoda.kernels.cpu.panel_product import (
    PANEL,
    PANEL_ROWS,
    STRIP_LINES,
    STRIPS,
    TILE_COLUMNS,
    TILE_ROWS,
    PanelRoutines,
)
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.team import claim, finish

_CHUNK_ROWS = 120
_LEAST_CHUNK = 24
_ITEMS_PER_THREAD = 8
_LINE_BYTES = 64
SUMS_BYTES = 4 * 2 * PANEL
"""From row to row of the sums of one item."""
SUMS_SIZE = -(-_CHUNK_ROWS // TILE_ROWS) * TILE_ROWS * SUMS_BYTES
"""Bytes of the largest item's sums, which are whole tiles."""


@kernel
def pack(weight: Array) -> None:
    """Turn a weight, [out, in] contiguous, into panels in its own memory.

    float32, or bfloat16 bits with `in` even.
    """
    num_rows, depth = weight.shape
    group = 4 // weight.itemsize
    flat = weight.reshape(-1)
    for panel in prange((num_rows + PANEL - 1) // PANEL):
        first = panel * PANEL
        end = min(first + PANEL, num_rows)
        rows = weight[first:end].copy()
        place = first * depth
        for k in range(0, depth, group):
            for row in range(end - first):
                for g in range(group):
                    flat[place] = rows[row, k + g]
                    place += 1


@cache
def embed_routine(paired: bool) -> Any:
    """For an embedding of bfloat16, which come in pairs, or float32."""

    def embed_rows(
        out: int, token_ids: int, count: int, embedding: int, vocab_size: int, width: int
    ) -> None:
        """out[r] = row token_ids[r] of a weight in panels.

        out: [count, width] float32; token_ids: [count] int64; embedding: [vocab_size, width].
        """
        group = 2 if paired else 1
        for r in range(count):
            token_id = integer_at(token_ids, r, 64)
            first = token_id // PANEL * PANEL
            columns = min(PANEL, vocab_size - first)
            start = first * width + (token_id - first) * group
            target = out + r * width * 4
            for k in range(width // group):
                for g in range(group):
                    number = number_at(embedding, start + k * columns * group + g, paired)
                    put_number(target, k * group + g, number, False)

    return compiled(embed_rows, 6)


@njit(error_model="numpy")
def _multiply_panel(
    routines: PanelRoutines, out: int, x: int, rows: int, depth: int, address: int, width: int,
    ahead: int,
) -> None:  # fmt: skip
    """out[:rows, :width] = x[:rows] · one panel of so many columns, by addresses."""
    tiles = (rows + PANEL_ROWS - 1) // PANEL_ROWS
    for tile in range(tiles):
        row, end = rows * tile // tiles, rows * (tile + 1) // tiles
        part, target = x + row * depth * 4, out + row * SUMS_BYTES
        if width == PANEL:
            call(
                routines.panel,
                (target, 2 * PANEL, part, depth, address, 0, PANEL, depth, ahead, end - row),
            )
        else:
            for column in range(width):
                place = 4 * column
                call(
                    routines.column,
                    (target + place, 2 * PANEL, part, depth, address + place, 0, width, depth, 0,
                     end - row),
                )  # fmt: skip


@njit(error_model="numpy")
def _multiply_pair(
    routines: PanelRoutines, out: int, x: int, rows: int, depth: int, first: int, second: int,
    ahead: int, ahead_second: int,
) -> None:  # fmt: skip
    """out[:rows] = x[:rows] · two whole panels, while the next two are asked from memory."""
    tiles = (rows + TILE_ROWS - 1) // TILE_ROWS
    # Of each panel there are two lines for every group of the depth, spread over the tiles.
    lines = 2 if tiles < STRIP_LINES else 1
    for strip in range(STRIPS):
        column = strip * TILE_COLUMNS
        panel = (first if column < PANEL else second) + column % PANEL * 4
        for tile in range(tiles):
            row, end = rows * tile // tiles, rows * (tile + 1) // tiles
            part, target = x + row * depth * 4, out + row * SUMS_BYTES + column * 4
            routine, asked = routines.tile, 0
            if tile * lines < STRIP_LINES:
                line = strip * STRIP_LINES + tile * lines
                routine = routines.tile_lines if lines == 2 else routines.tile_line
                asked = (ahead if line < 2 else ahead_second) + line % 2 * depth * _LINE_BYTES
            call(
                routine,
                (target, 2 * PANEL, part, depth, panel, second, PANEL, depth, asked, end - row),
            )


@njit(error_model="numpy")
def _chunk_rows(rows: int, columns: int, num_threads: int) -> int:
    """Rows of an item, in whole tiles: few enough that all threads are busy to the end."""
    wanted = (_ITEMS_PER_THREAD * num_threads + columns - 1) // columns
    chunks = max((rows + _CHUNK_ROWS - 1) // _CHUNK_ROWS, min(wanted, rows // _LEAST_CHUNK))
    return -(-rows // (chunks * TILE_ROWS)) * TILE_ROWS


@cache
def sum_routine(adds: bool) -> Any:
    """What `multiply` calls to keep the results as they are, or to add them to what is there."""

    def put_sums(
        out: int, row_bytes: int, sums: int, rows: int, width: int, bias: int, second_bias: int
    ) -> None:
        """out = sums + bias, or out += sums + bias; float32, from row to row `row_bytes`."""
        for r in range(rows):
            target, source = out + r * row_bytes, sums + r * SUMS_BYTES
            for c in range(width):
                value = number_at(source, c, False) + number_at(bias, c, False)
                if adds:
                    value += number_at(target, c, False)
                put_number(target, c, value, False)

    return compiled(put_sums, 7)


@cache
def gate_routine(paired: bool) -> Any:
    """What `multiply` calls for the product with gate and up; for bfloat16, or float32."""

    def gate(
        out: int, row_bytes: int, sums: int, rows: int, width: int, bias: int, second_bias: int
    ) -> None:
        """out = silu(gate + bias) · (up + second_bias); out: of the routine's dtype."""
        for r in range(rows):
            target, gates = out + r * row_bytes, sums + r * SUMS_BYTES
            ups = gates + PANEL * 4
            for c in range(width):
                x = number_at(gates, c, False) + number_at(bias, c, False)
                up = number_at(ups, c, False) + number_at(second_bias, c, False)
                put_number(target, c, silu(x) * up, paired)

    return compiled(gate, 7)


@njit(error_model="numpy")
def multiply(
    phase: int, num_threads: int, routines: PanelRoutines, use: int, sums: int,
    out: int, row_bytes: int, item_size: int, x: int, rows: int, depth: int,
    first: int, second: int, width: int, bias: int, second_bias: int, following: int,
) -> None:  # fmt: skip
    """A thread's share of the product of all rows of x with a weight in panels.

    phase: one that nobody has begun, the same for all threads; num_threads: how many those are.
    use: `sum_routine` or `gate_routine`. sums: `SUMS_SIZE` bytes of the thread's own. out: what
    `use` writes, `row_bytes` from row to row and `item_size` from column to column.
    x: [rows, depth groups] of the weight's dtype. first: the weight, [width, depth groups];
    second: 0, or another of that shape, whose columns are wanted together with the first's, which
    `gate_routine` alone does. bias, second_bias: [width] float32; without a second it is not read.
    following: what will be read next, two panels, to be asked from memory.
    """
    num_panels = (width + PANEL - 1) // PANEL
    panel_bytes = PANEL * depth * 4
    # Many rows take panels in pairs, few take them one by one; gate and up belong together.
    is_gated = second != 0
    step = 2 if not is_gated and rows > PANEL_ROWS else 1
    columns = (num_panels + step - 1) // step
    chunk = _chunk_rows(rows, columns, num_threads) if rows > PANEL_ROWS else rows
    chunks = (rows + chunk - 1) // chunk
    total = columns * chunks
    mine = 0
    item = claim(phase)
    while item < total:
        upcoming = claim(phase)
        place = item // chunks * step
        start = item % chunks * chunk
        count = min(chunk, rows - start)
        source = x + start * depth * 4
        address = first + place * panel_bytes
        other = second + place * panel_bytes if is_gated else address + panel_bytes
        ahead, ahead_other = following, following + panel_bytes
        if upcoming < total:
            ahead = first + upcoming // chunks * step * panel_bytes
            ahead_other = ahead - first + second if is_gated else ahead + panel_bytes
        column = place * PANEL
        size = min(PANEL, width - column)
        other_size = size if is_gated else min(PANEL, max(0, width - column - PANEL))
        if rows > PANEL_ROWS and size == PANEL and other_size == PANEL:
            _multiply_pair(routines, sums, source, count, depth, address, other, ahead, ahead_other)
        else:
            _multiply_panel(routines, sums, source, count, depth, address, size, ahead)
            if step == 2 or is_gated:
                _multiply_panel(
                    routines, sums + 4 * PANEL, source, count, depth, other, other_size, ahead_other
                )
        wanted = size if is_gated or step == 1 else size + other_size
        target = out + start * row_bytes + column * item_size
        call(
            use,
            (target, row_bytes, sums, count, wanted, bias + column * 4, second_bias + column * 4),
        )
        mine += 1
        item = upcoming
    finish(phase, mine, total)
