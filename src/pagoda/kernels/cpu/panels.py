"""Weights in panels, the order in which a product reads them.

A panel is 32 rows of a weight [out, in], that is 32 columns of the product, turned so that a
product runs through it from end to end. With groups of four bytes, one float32 or two bfloat16:

    [in / group][32][group]

The last panel of a weight may have fewer rows. A weight takes the same memory in either form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.activation import silu_gate
from pagoda.kernels.cpu.fingerprint import FINGERPRINT
from pagoda.kernels.cpu.number import load_at
from pagoda.kernels.cpu.product import PAIR_ROWS, PANEL, PANEL_ROWS, PanelRoutines
from pagoda.kernels.cpu.routine import address_of, call
from pagoda.kernels.cpu.team import claim, finish

_CHUNK_ROWS = 120
_LEAST_CHUNK = 24
_ITEMS_PER_THREAD = 8
_HAS_PAIRS = PAIR_ROWS >= 6
"""Tiles of two panels are worth their while: registers hold enough rows of them."""
_LINE_BYTES = 64
_SUMS_BYTES = 4 * 2 * PANEL
"""From row to row of the sums of one item."""


def _pack_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def pack(weight: Array) -> None:
        """Turn a weight, [out, in] contiguous, into panels in its own memory.

        float32, or bfloat16 bits with `in` even.
        """
        _ = fingerprint
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

    return pack


pack = _pack_kernel(FINGERPRINT)


@njit(error_model="numpy")
def read_row(out: Array, address: int, row: int, num_rows: int, like: Array) -> None:
    """Write row `row` of a weight that lies in panels to out: [in] float32.

    address: of a weight [num_rows, in]; like: an array of its dtype.
    """
    depth = out.shape[0]
    group = 4 // like.itemsize
    first = row // PANEL * PANEL
    width = min(PANEL, num_rows - first)
    start = first * depth + (row - first) * group
    for k in range(0, depth, group):
        for g in range(group):
            out[k + g] = load_at(address, start + k * width + g, like)


@njit(error_model="numpy")
def _multiply_panel(
    routines: PanelRoutines, out: int, x: int, rows: int, depth: int, address: int, width: int,
    ahead: int,
) -> None:  # fmt: skip
    """out[:rows, :width] = x[:rows] · one panel of so many columns, by addresses."""
    tiles = (rows + PANEL_ROWS - 1) // PANEL_ROWS
    for tile in range(tiles):
        row, end = rows * tile // tiles, rows * (tile + 1) // tiles
        part, target = x + row * depth * 4, out + row * _SUMS_BYTES
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
    tiles = (rows + PAIR_ROWS - 1) // PAIR_ROWS
    # Of each panel there are two lines for every group of the depth, spread over the tiles.
    lines = 2 if tiles < 4 else 1
    for tile in range(tiles):
        row, end = rows * tile // tiles, rows * (tile + 1) // tiles
        part, target = x + row * depth * 4, out + row * _SUMS_BYTES
        routine, asked = routines.pair, 0
        line = tile * lines
        if line < 4:
            routine = routines.pair_lines if lines == 2 else routines.pair_line
            asked = (ahead if line < 2 else ahead_second) + line % 2 * depth * _LINE_BYTES
        call(
            routine,
            (target, 2 * PANEL, part, depth, first, second, PANEL, depth, asked, end - row),
        )


@njit(error_model="numpy")
def _chunk_rows(rows: int, columns: int, num_threads: int) -> int:
    """Rows of an item, in whole tiles: few enough that all threads are busy to the end."""
    wanted = (_ITEMS_PER_THREAD * num_threads + columns - 1) // columns
    chunks = max((rows + _CHUNK_ROWS - 1) // _CHUNK_ROWS, min(wanted, rows // _LEAST_CHUNK))
    return -(-rows // (chunks * PAIR_ROWS)) * PAIR_ROWS


@njit(error_model="numpy")
def _keep(out: Array, row: int, column: int, sums: Array, width: int, bias: Array) -> None:
    """out = sums + bias; out: float32."""
    offset = bias[column : column + width]
    for r in range(sums.shape[0]):
        target, source = out[row + r, column : column + width], sums[r, :width]
        for c in range(width):
            target[c] = source[c] + offset[c]


@njit(error_model="numpy")
def _keep_plain(out: Array, row: int, column: int, sums: Array, width: int, bias: Array) -> None:
    """out = sums; out: float32."""
    for r in range(sums.shape[0]):
        target, source = out[row + r, column : column + width], sums[r, :width]
        for c in range(width):
            target[c] = source[c]


@njit(error_model="numpy")
def _add_to(out: Array, row: int, column: int, sums: Array, width: int, bias: Array) -> None:
    """out += sums + bias; out: float32."""
    offset = bias[column : column + width]
    for r in range(sums.shape[0]):
        target, source = out[row + r, column : column + width], sums[r, :width]
        for c in range(width):
            target[c] += source[c] + offset[c]


@njit(error_model="numpy")
def new_sums() -> Array:
    """Memory for one thread that multiplies: the sums of one item."""
    return np.empty((_CHUNK_ROWS, 2 * PANEL), np.float32)


def _multiply(use: Callable[..., None]) -> Callable[..., None]:
    """The product whose results go through `use`.

    It is called with out, the row and the column of out where they belong, the sums, a float32
    array [some rows, some columns] with a second weight's columns from PANEL on, how many of the
    columns count, and bias.
    """

    @njit(error_model="numpy")
    def multiply(
        phase: Array, num_threads: int, routines: PanelRoutines, sums: Array, out: Array, x: Array,
        first: int, second: int, width: int, following: int, bias: Array,
    ) -> None:  # fmt: skip
        """A thread's share of the product of all rows of x with a weight in panels.

        phase: one that nobody has begun, the same for all threads; num_threads: how many those are.
        sums: the thread's own, from `new_sums`.
        x: [rows, in] contiguous, of the weight's dtype; routines: for that dtype. first: address of
        the weight, [width, in]; second: 0, or the address of another of that shape, whose columns
        are wanted together with the first's. out and bias: as `use` takes them.
        following: address of what will be read next, to be asked from memory.
        """
        rows, depth = x.shape[0], x.shape[1] * x.itemsize // 4
        num_panels = (width + PANEL - 1) // PANEL
        panel_bytes = PANEL * depth * 4
        # Many rows take panels in pairs, few take them one by one; gate and up belong together.
        is_paired = second != 0
        step = 2 if not is_paired and rows > PANEL_ROWS else 1
        columns = (num_panels + step - 1) // step
        chunk = _chunk_rows(rows, columns, num_threads) if rows > PANEL_ROWS else rows
        chunks = (rows + chunk - 1) // chunk
        total = columns * chunks
        target = address_of(sums)
        mine = 0
        item = claim(phase)
        while item < total:
            upcoming = claim(phase)
            place = item // chunks * step
            part = item % chunks
            start = part * chunk
            end = min(start + chunk, rows)
            source = address_of(x) + start * depth * 4
            address = first + place * panel_bytes
            other = second + place * panel_bytes if is_paired else address + panel_bytes
            ahead, ahead_other = following, following + panel_bytes
            if upcoming < total:
                ahead = first + upcoming // chunks * step * panel_bytes
                ahead_other = ahead - first + second if is_paired else ahead + panel_bytes
            column = place * PANEL
            size = min(PANEL, width - column)
            other_size = size if is_paired else min(PANEL, max(0, width - column - PANEL))
            if _HAS_PAIRS and rows > PANEL_ROWS and size == PANEL and other_size == PANEL:
                _multiply_pair(
                    routines, target, source, end - start, depth, address, other, ahead, ahead_other
                )
            else:
                _multiply_panel(routines, target, source, end - start, depth, address, size, ahead)
                if step == 2 or is_paired:
                    _multiply_panel(
                        routines, target + 4 * PANEL, source, end - start, depth, other, other_size,
                        ahead_other,
                    )  # fmt: skip
            wanted = size if is_paired or step == 1 else size + other_size
            use(out, start, column, sums[: end - start], wanted, bias)
            mine += 1
            item = upcoming
        finish(phase, mine, total)

    return multiply


multiply = _multiply(_keep)
multiply_plain = _multiply(_keep_plain)
multiply_add = _multiply(_add_to)
multiply_gate = _multiply(silu_gate)
