"""The product of rows with a weight in panels, shared out among threads."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import njit

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.few_rows import FEW_ROWS
from pagoda.kernels.cpu.int8_rows import RECORD_BYTES
from pagoda.kernels.cpu.number import integer_at, integers_at, number_at, put_number
from pagoda.kernels.cpu.operands import Ahead, Rows, Target, Weight, rows_from
from pagoda.kernels.cpu.panel_product import (
    PANEL_ROWS,
    STRIP_LINES,
    STRIPS,
    TILE_COLUMNS,
    TILE_ROWS,
    PanelRoutines,
    panel_routines,
)
from pagoda.kernels.cpu.panels import (
    ENTRY_BYTES,
    SLICE_BYTES,
    SLICE_VALUES,
    TABLE_FIELDS,
    PanelEntry,
)
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.stored_words import SPAN, TOGETHER
from pagoda.kernels.cpu.sums import SUMS_BYTES
from pagoda.kernels.cpu.team import Team, claim, claim_near, finish, first_of_run
from pagoda.kernels.cpu.vector import LINE_BYTES

_CHUNK_ROWS, _STORED_CHUNK_ROWS = 120, 264 if TOGETHER == 2 else 180
"""Most rows of an item. Decoded panels serve more of them."""
_LEAST_CHUNK = 24
_ITEMS_PER_THREAD = 8
SUMS_SIZE = -(-_STORED_CHUNK_ROWS // TILE_ROWS) * TILE_ROWS * SUMS_BYTES
"""Bytes of the largest item's sums, which are whole tiles."""
_WIDENED = SUMS_SIZE + 2 * SLICE_BYTES
_WIDENED_BYTES = 0 if TOGETHER == 2 else SUMS_SIZE // SUMS_BYTES * SLICE_VALUES * 4
MEMORY_BYTES = _WIDENED + _WIDENED_BYTES
"""What a thread needs to multiply: sums, slices of two panels, and of the rows for them where these
are widened."""


class ProductRoutines(NamedTuple):
    """Addresses of what `multiply` calls, for weights of one dtype."""

    column: int
    """This and the next four: `PanelRoutines` for plain panels."""
    panel: int
    tile: int
    tile_line: int
    tile_lines: int
    decoded_panel: int
    """This and the next: for panels that have been decoded, which ask nothing from memory."""
    decoded_tile: int
    widen: int
    """Makes rows as the decoded panels are; 0: they are so."""


@cache
def product_routines(paired: bool) -> ProductRoutines:
    """For bfloat16, which come in pairs, or float32, where no panel is decoded."""
    plain, is_pair = panel_routines(paired), TOGETHER == 2
    if not paired:
        return ProductRoutines(*plain, plain.panel, plain.tile, 0)
    decoded = panel_routines(is_pair, asks=False)
    widen = 0 if is_pair else _widen_routine().address
    return ProductRoutines(*plain, decoded.panel, decoded.tile, widen)


@njit(error_model="numpy")
def _plain(routines: ProductRoutines) -> PanelRoutines:
    return PanelRoutines(
        routines.column, routines.panel, routines.tile, routines.tile_line, routines.tile_lines
    )


@njit(error_model="numpy")
def _decoded(routines: ProductRoutines) -> PanelRoutines:
    """They are always whole: `column` is not called."""
    panel, tile = routines.decoded_panel, routines.decoded_tile
    return PanelRoutines(routines.column, panel, tile, tile, tile)


@cache
def _widen_routine() -> Any:
    def widen(out: int, x: int, rows: int, stride: int, count: int) -> None:
        """out[rows, SLICE_VALUES] float32 = `count` bfloat16 of each row of x.

        From row to row of x are `stride` bytes.
        """
        for r in range(rows):
            for k in range(count):
                put_number(out, r * SLICE_VALUES + k, number_at(x + r * stride, k, True), False)

    return compiled(widen, 5)


@njit(error_model="numpy")
def _multiply_panel(
    routines: PanelRoutines, out: int, x: int, rows: int, depth: int, address: int, count: int,
    width: int, ahead: int, goes_on: int,
) -> None:  # fmt: skip
    """out[:rows, :width] = x[:rows] · `count` groups of one panel of so many columns.

    By addresses; `depth` groups are between rows of x. If it goes on, sums are added to.
    """
    tiles = (rows + PANEL_ROWS - 1) // PANEL_ROWS
    for tile in range(tiles):
        row, end = rows * tile // tiles, rows * (tile + 1) // tiles
        part, target = x + row * depth * 4, out + row * SUMS_BYTES
        if width == PANEL:
            call(
                routines.panel,
                (target, 2 * PANEL, part, depth, address, 0, PANEL, count, ahead, end - row,
                 goes_on),
            )  # fmt: skip
        else:
            for column in range(width):
                place = 4 * column
                call(
                    routines.column,
                    (target + place, 2 * PANEL, part, depth, address + place, 0, width, count, 0,
                     end - row, goes_on),
                )  # fmt: skip


@njit(error_model="numpy")
def multiply_plain(
    routines: ProductRoutines, memory: int, x: int, rows: int, stride: int, depth: int, panel: int,
    ahead: int,
) -> None:  # fmt: skip
    """The sums in a thread's memory = rows · one plain panel, which is whole.

    x: rows of `depth` groups, `stride` groups from one to the next; ahead: what is asked meanwhile.
    """
    _multiply_panel(_plain(routines), memory, x, rows, stride, panel, depth, PANEL, ahead, 0)


@njit(error_model="numpy")
def _multiply_pair(
    routines: PanelRoutines, out: int, x: int, rows: int, depth: int, first: int, second: int,
    count: int, ahead: int, ahead_second: int, goes_on: int,
) -> None:  # fmt: skip
    """out[:rows] = x[:rows] · `count` groups of two whole panels, while two are asked from memory.

    As `_multiply_panel`.
    """
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
                asked = (ahead if line < 2 else ahead_second) + line % 2 * depth * LINE_BYTES
            call(
                routine,
                (target, 2 * PANEL, part, depth, panel, second, PANEL, count, asked, end - row,
                 goes_on),
            )  # fmt: skip


@njit(error_model="numpy")
def _is_rounded(rows: Rows, panel: PanelEntry) -> bool:
    return rows.records != 0 and panel.rounded != 0


@njit(error_model="numpy")
def _multiply_stored(
    routines: ProductRoutines, memory: int, column: int, rows: Rows, panel: PanelEntry,
    other: PanelEntry, is_pair: bool,
) -> None:  # fmt: skip
    """The sums in a thread's memory = rows · one panel, or two, which keep their types.

    column: of the sums, that the first panel's come to; other: not read unless it is a pair.
    """
    decoded, decoded_other = memory + SUMS_SIZE, memory + SUMS_SIZE + SLICE_BYTES
    sums = memory + column * 4
    width = 2 * rows.depth
    for first in range(0, width, SLICE_VALUES):
        count = min(SLICE_VALUES, width - first)
        call(panel.decode, (decoded, panel.address, first, count, 0, PANEL, 1))
        part, stride = rows.x + 2 * first, rows.depth
        if routines.widen != 0:
            call(routines.widen, (memory + _WIDENED, part, rows.num_rows, 4 * rows.depth, count))
            part, stride = memory + _WIDENED, SLICE_VALUES
        groups = count // TOGETHER
        if is_pair:
            call(other.decode, (decoded_other, other.address, first, count, 0, PANEL, 1))
            _multiply_pair(
                _decoded(routines), sums, part, rows.num_rows, stride, decoded, decoded_other,
                groups, 0, 0, first,
            )  # fmt: skip
        else:
            _multiply_panel(
                _decoded(routines), sums, part, rows.num_rows, stride, decoded, groups, PANEL, 0,
                first,
            )  # fmt: skip


@njit(error_model="numpy")
def _multiply_alone(
    routines: ProductRoutines, memory: int, column: int, rows: Rows, panel: PanelEntry, width: int,
    ahead: int, following: int,
) -> None:  # fmt: skip
    """The sums in a thread's memory, from `column` on, = rows · one panel of any kind.

    ahead: what a plain panel asks from memory meanwhile; following: the panel that is read next,
    whose beginning a stored one asks for if it is not decoded first.
    """
    sums = memory + column * 4
    if _is_rounded(rows, panel):
        spans = 2 * rows.depth // SPAN
        call(
            panel.rounded,
            (sums, rows.records, rows.record_stride, rows.num_rows, panel.address, spans,
             following),
        )  # fmt: skip
    elif panel.few != 0 and rows.num_rows <= FEW_ROWS:
        spans = 2 * rows.depth // SPAN
        call(panel.few, (sums, rows.x, rows.depth, rows.num_rows, panel.address, spans, following))
    elif panel.decode != 0:
        _multiply_stored(routines, memory, column, rows, panel, panel, False)
    else:
        _multiply_panel(
            _plain(routines), sums, rows.x, rows.num_rows, rows.depth, panel.address, rows.depth,
            width, ahead, 0,
        )  # fmt: skip


@njit(error_model="numpy")
def panels_at_once(weight: Weight, rows: int) -> int:
    """Many rows take panels in pairs, few take them one by one; gate and up belong together."""
    return 2 if weight.second == 0 and rows > PANEL_ROWS else 1


@njit(error_model="numpy")
def chunk_rows(weight: Weight, rows: int, columns: int, num_threads: int) -> int:
    """Rows of an item, in whole tiles: few enough that all threads are busy to the end.

    columns: items side by side in all that is multiplied at the time.
    """
    if rows <= PANEL_ROWS:
        return rows
    is_plain = PanelEntry(*integers_at(weight.first, TABLE_FIELDS)).decode == 0
    most = _CHUNK_ROWS if is_plain else _STORED_CHUNK_ROWS
    wanted = (_ITEMS_PER_THREAD * num_threads + columns - 1) // columns
    chunks = max((rows + most - 1) // most, min(wanted, rows // _LEAST_CHUNK))
    return -(-rows // (chunks * TILE_ROWS)) * TILE_ROWS


@njit(error_model="numpy")
def panels_from(entry: int) -> Ahead:
    """A panel by its entry in a table, and the one behind it."""
    return Ahead(integer_at(entry, 0, 64), integer_at(entry, TABLE_FIELDS, 64))


@njit(error_model="numpy")
def entry_of_run(team: Team, table: int, rows: int) -> int:
    """The entry of the panel that a thread begins with, of a table's; of many rows, the first."""
    if rows > PANEL_ROWS:
        return table
    num_panels = PanelEntry(*integers_at(table, TABLE_FIELDS)).left
    return table + first_of_run(team, team.thread, num_panels) * ENTRY_BYTES


@njit(error_model="numpy")
def panels_of_item(weight: Weight, place: int) -> Ahead:
    """The panels of an item of `multiply_item`."""
    entry = place * ENTRY_BYTES
    if weight.second == 0:
        return panels_from(weight.first + entry)
    return Ahead(integer_at(weight.first + entry, 0, 64), integer_at(weight.second + entry, 0, 64))


@njit(error_model="numpy")
def multiply_item(
    routines: ProductRoutines, memory: int, part: Rows, weight: Weight, target: Target, place: int,
    in_pairs: bool, ahead: Ahead,
) -> None:  # fmt: skip
    """The product of some rows with one panel, or two.

    memory: `MEMORY_BYTES` of the thread's own. target: its `out` is of the first of these rows.
    place: which panel is the first. in_pairs: the weight is multiplied with more than `PANEL_ROWS`
    rows, of which these are some. ahead: what is read next: plain panels ask for all of both
    meanwhile, stored ones for the beginning of the first.
    """
    is_gated = weight.second != 0
    panel = PanelEntry(*integers_at(weight.first + place * ENTRY_BYTES, TABLE_FIELDS))
    beside = weight.first + (place + 1) * ENTRY_BYTES
    if is_gated:
        beside = weight.second + place * ENTRY_BYTES
    other = PanelEntry(*integers_at(beside, TABLE_FIELDS))
    column = place * PANEL
    size = min(PANEL, weight.width - column)
    other_size = size
    if not is_gated:
        other_size = min(PANEL, max(0, weight.width - column - PANEL)) if in_pairs else 0
    is_pair = in_pairs and other_size > 0
    is_rounded = _is_rounded(part, panel) or _is_rounded(part, other)
    if is_pair and not is_rounded and panel.decode != 0 and other.decode != 0:
        _multiply_stored(routines, memory, 0, part, panel, other, True)
    elif is_pair and panel.decode == 0 and other.decode == 0 and other_size == PANEL:
        _multiply_pair(
            _plain(routines), memory, part.x, part.num_rows, part.depth, panel.address,
            other.address, part.depth, ahead.first, ahead.other, 0,
        )  # fmt: skip
    else:
        following = other.address if other_size > 0 else ahead.first
        _multiply_alone(routines, memory, 0, part, panel, size, ahead.first, following)
        if other_size > 0:
            _multiply_alone(
                routines, memory, PANEL, part, other, other_size, ahead.other, ahead.first
            )
    wanted = size if is_gated else size + other_size
    call(
        target.use,
        (target.out + column * target.item_size, target.row_bytes, memory, part.num_rows, wanted,
         weight.bias + column * 4, weight.second_bias + column * 4),
    )  # fmt: skip


@njit(error_model="numpy")
def next_item(team: Team, phase: int, total: int, chunks: int) -> int:
    """The next of a product's items, where each panel is read for so many chunks of rows.

    If these are more than one, threads take them in turn: so both read a panel while it is in the
    cache that they share.
    """
    return claim_near(team, phase, total) if chunks == 1 else claim(phase)


@njit(error_model="numpy")
def multiply(
    phase: int, team: Team, routines: ProductRoutines, use: int, memory: int,
    out: int, row_bytes: int, item_size: int, x: int, rows: int, depth: int, records: int,
    first: int, second: int, width: int, bias: int, second_bias: int, following: int,
) -> None:  # fmt: skip
    """A thread's share of the product of all rows of x with a weight in panels.

    phase: one that nobody has begun, the same for all threads.
    memory: `MEMORY_BYTES` of the thread's own. use, out, row_bytes, item_size: see `Target`.
    x: [rows, depth groups] of the weight's dtype; records: of these rows, see `Rows`.
    first, second, width, bias, second_bias: see `Weight`.
    following: the entry of the panel that the thread reads next, which is asked for at the end with
    the one behind it.
    """
    weight = Weight(first, second, width, bias, second_bias)
    all_rows = Rows(x, rows, depth, records, rows * RECORD_BYTES)
    step = panels_at_once(weight, rows)
    columns = ((width + PANEL - 1) // PANEL + step - 1) // step
    chunk = chunk_rows(weight, rows, columns, team.num_threads)
    chunks = (rows + chunk - 1) // chunk
    total = columns * chunks
    mine = 0
    item = next_item(team, phase, total, chunks)
    while item < total:
        upcoming = next_item(team, phase, total, chunks)
        start = item % chunks * chunk
        ahead = panels_from(following)
        if upcoming < total:
            ahead = panels_of_item(weight, upcoming // chunks * step)
        multiply_item(
            routines, memory, rows_from(all_rows, start, min(chunk, rows - start)), weight,
            Target(use, out + start * row_bytes, row_bytes, item_size), item // chunks * step,
            rows > PANEL_ROWS, ahead,
        )  # fmt: skip
        mine += 1
        item = upcoming
    finish(phase, mine, total)
