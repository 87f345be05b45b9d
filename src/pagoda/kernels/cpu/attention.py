"""Attention over a paged cache, for any run of rows: one new token of a sequence or thousands.

The context of a row is cut into splits of whole blocks, fixed by position. In each split, in order:

    scores = q · K      highest = max(scores)      p = 2 ** (scores - highest)      mass = Σ p
    piece = p · V

and the pieces are merged in the order of the splits. Every sum has one order, fixed by positions
alone. So a row's result does not depend on the other rows of the batch, on how a prompt was cut
into chunks, on where its blocks lie or on the number of threads; not in a single bit.

Queries and p are rounded to the dtype of the cache before they meet K and V; all else is float32.
Few rows are worked on for all heads at once, because K of all heads lie side by side in a block,
and memory is fastest when it is read in long runs; many rows one head at a time, so that they stay
in cache. Tokens of sequences that share the blocks of a split are worked on together, so that the
split is read once.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from numba import njit

from pagoda.kernels.cpu.attention_products import (
    Heads,
    gather_scales,
    score_split,
    weigh_split,
)
from pagoda.kernels.cpu.attention_rows import (
    clear_routine,
    finish_routine,
    load_routine,
    merge_routine,
    save_routine,
    soften_routine,
)
from pagoda.kernels.cpu.attention_scratch import Scratch, split_tokens
from pagoda.kernels.cpu.attention_tiling import Merge, TilingAddresses, WorkItem
from pagoda.kernels.cpu.code_scales import scales_of
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.number import integer_at, integers_at
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.page_product import HeadRoutines
from pagoda.kernels.cpu.pages import LayerPages
from pagoda.kernels.cpu.routine import call
from pagoda.kernels.cpu.softmax import WIDTH
from pagoda.kernels.cpu.team import claim, finish
from pagoda.kernels.cpu.turn import turn_routine

_TILE_ROWS = 96


class RowRoutines(NamedTuple):
    """Addresses of what is done to rows beside the products; see `attention_rows`."""

    load: int
    soften: int
    merge: int
    clear: int
    save: int
    finish: int
    turn: int
    """0 where values lie in no basis of their own."""


@cache
def row_routines(form: PageForm, paired_out: bool) -> RowRoutines:
    """For a cache, and for results in bfloat16, or float32."""
    return RowRoutines(
        load_routine(form.paired).address,
        soften_routine(form.paired, scales_of(form)).address,
        merge_routine().address,
        clear_routine().address,
        save_routine().address,
        finish_routine(paired_out).address,
        0 if form.value is None else turn_routine(form.head_dim).address,
    )


_ITEM_FIELDS, _MERGE_FIELDS = len(WorkItem._fields), len(Merge._fields)


class Layer(NamedTuple):
    """Where one layer's attention reads and writes: addresses."""

    out: int
    """[rows, num_heads * head_dim], written"""
    out_bytes: int
    """From row to row."""
    queries: int
    """[rows, at least that] float32, heads first"""
    query_bytes: int
    """From row to row."""
    blocks: int
    """Of the cache."""
    scale: int
    """[1] float32, times log2(e): multiplies q · k"""
    window: int
    """Tokens that a row sees, its own included; no address."""
    pages: LayerPages
    """How the blocks are laid out."""


def tile_tokens(group_size: int) -> int:
    """Tokens of a tile: enough rows to keep the multipliers busy, few enough to stay in cache."""
    return max(1, _TILE_ROWS // group_size)


@njit(error_model="numpy")
def _next_keys(
    item: int, next_item: int, split: int, layer: Layer, tiling: TilingAddresses, shape: HeadShape
) -> int:
    """Address of the K that is likely read after a split of an item; it is only asked for."""
    work = WorkItem(*integers_at(tiling.work + item * _ITEM_FIELDS * 8, _ITEM_FIELDS))
    split += 1
    if split == work.end_split:
        if next_item >= tiling.num_items:
            return layer.queries
        work = WorkItem(*integers_at(tiling.work + next_item * _ITEM_FIELDS * 8, _ITEM_FIELDS))
        split = work.first_split
    entry = split * (split_tokens(shape.block_size) // shape.block_size)
    block = integer_at(tiling.block_tables + work.sequence * tiling.table_bytes, entry, 32)
    layout = layer.pages.layout
    return layer.blocks + block * layout.block_bytes + work.first_head * layout.key_head_bytes


@njit(error_model="numpy")
def _finish_rows(
    layer: Layer, tokens: int, count: int, heads: Heads, shape: HeadShape,
    row_routines: RowRoutines, scratch: Scratch,
) -> None:  # fmt: skip
    """Write what `count` tokens get from some heads, whose sums are complete and are changed."""
    first_head, end_head = heads
    rows, head_dim = count * shape.group_size, shape.head_dim
    matrices = layer.pages.codes.output_turn
    if matrices != 0:
        for head in range(first_head, end_head):
            sums = scratch.sums + (head - first_head) * rows * head_dim * 4
            matrix = matrices + head * head_dim * head_dim * 4
            call(row_routines.turn, (sums, head_dim, matrix, rows, scratch.added))
    call(
        row_routines.finish,
        (layer.out, layer.out_bytes, tokens, count, first_head, end_head, shape.group_size,
         head_dim, scratch.sums, scratch.mass),
    )  # fmt: skip


@njit(error_model="numpy")
def _attend_item(
    item: int, next_item: int, layer: Layer, tiling: TilingAddresses, shape: HeadShape,
    routines: HeadRoutines, row_routines: RowRoutines, scratch: Scratch,
) -> None:  # fmt: skip
    """Do one item of the tiling's work; `next_item` is likely to follow, if there is one."""
    work = WorkItem(*integers_at(tiling.work + item * _ITEM_FIELDS * 8, _ITEM_FIELDS))
    table = tiling.block_tables + work.sequence * tiling.table_bytes
    tokens, count = tiling.tokens + work.first * 8, work.num_tokens
    heads = (work.first_head, work.end_head)
    group_size, head_dim = shape.group_size, shape.head_dim
    head_rows = count * group_size
    rows = (work.end_head - work.first_head) * head_rows
    call(
        row_routines.load,
        (scratch.query, layer.queries, layer.query_bytes, tokens, count, work.first_head,
         work.end_head, group_size, head_dim),
    )  # fmt: skip
    call(row_routines.clear, (scratch.sums, scratch.highest, scratch.mass, rows, head_dim))
    if routines.sum_queries != 0:
        call(routines.sum_queries, (scratch.query_sums, scratch.query, rows))
    low = high = integer_at(tiling.positions, integer_at(tokens, 0, 64), 32)
    for t in range(1, count):
        position = integer_at(tiling.positions, integer_at(tokens, t, 64), 32)
        low, high = min(low, position), max(high, position)
    split_size = split_tokens(shape.block_size)
    first_seen, last_seen = max(low - layer.window + 1, 0), high + 1
    first_split = work.first_split
    if item >= tiling.num_parts:
        first_split = max(first_split, first_seen // split_size)
    for split in range(first_split, work.end_split):
        origin = split * split_size
        begin, end = max(first_seen, origin), min(last_seen, origin + split_size)
        span = (origin, begin, end)
        in_blocks = -(-(end - origin) // shape.block_size) * shape.block_size
        used = -(-in_blocks // WIDTH) * WIDTH
        if begin < end:
            score_split(
                scratch, head_rows, layer.blocks, layer.pages, table, span, heads, shape, routines
            )
            gather_scales(
                scratch, layer.blocks, layer.pages, table, span, heads, used, shape, routines
            )
            call(
                row_routines.soften,
                (scratch.scores, scratch.weights, scratch.width, used, tiling.positions, tokens,
                 count, work.end_head - work.first_head, group_size, origin, begin, end,
                 layer.window, layer.scale, scratch.added_highest, scratch.added_mass,
                 scratch.scales, scratch.query_sums, scratch.offsets),
            )  # fmt: skip
            following = _next_keys(item, next_item, split, layer, tiling, shape)
            weigh_split(
                scratch, head_rows, layer.blocks, layer.pages, table, span, heads, shape, routines,
                following,
            )  # fmt: skip
        else:  # a part that lies before the window
            call(
                row_routines.clear,
                (scratch.added, scratch.added_highest, scratch.added_mass, rows, head_dim),
            )
        if item < tiling.num_parts:
            call(
                row_routines.save,
                (tiling.parts, tiling.part_bytes, tiling.starts, split, tokens, count,
                 work.first_head, work.end_head, shape.num_kv_heads, group_size, head_dim,
                 scratch.added, scratch.added_highest, scratch.added_mass),
            )  # fmt: skip
        else:
            call(
                row_routines.merge,
                (scratch.sums, scratch.highest, scratch.mass, scratch.added,
                 scratch.added_highest, scratch.added_mass, rows, head_dim),
            )  # fmt: skip
    if item >= tiling.num_parts:
        _finish_rows(layer, tokens, count, heads, shape, row_routines, scratch)


@njit(error_model="numpy")
def _merge_parts(
    item: int, layer: Layer, tiling: TilingAddresses, shape: HeadShape, row_routines: RowRoutines,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Merge one row's parts, of one KV head, in the order of splits."""
    number, head = item // shape.num_kv_heads, item % shape.num_kv_heads
    place = tiling.merges + number * _MERGE_FIELDS * 8
    merge = Merge(*integers_at(place, _MERGE_FIELDS))
    group_size, head_dim = shape.group_size, shape.head_dim
    num_heads = shape.num_kv_heads * group_size
    call(row_routines.clear, (scratch.sums, scratch.highest, scratch.mass, group_size, head_dim))
    for part_number in range(merge.first_part, merge.first_part + merge.num_parts):
        part = tiling.parts + part_number * tiling.part_bytes
        highest = part + (num_heads * head_dim + head * group_size) * 4
        call(
            row_routines.merge,
            (scratch.sums, scratch.highest, scratch.mass,
             part + head * group_size * head_dim * 4, highest, highest + num_heads * 4,
             group_size, head_dim),
        )  # fmt: skip
    _finish_rows(layer, place, 1, (head, head + 1), shape, row_routines, scratch)


@njit(error_model="numpy")
def attend(
    working: int, merging: int, num_threads: int, layer: Layer, tiling: TilingAddresses,
    shape: HeadShape, routines: HeadRoutines, row_routines: RowRoutines, scratch: Scratch,
) -> None:  # fmt: skip
    """A thread's share of the attention of one layer.

    working, merging: phases that nobody has begun, the same for all threads; num_threads: how many
    those are; scratch: this one's own.
    """
    mine = 0
    item = claim(working)
    while item < tiling.num_items:
        _attend_item(
            item, item + num_threads, layer, tiling, shape, routines, row_routines, scratch
        )
        mine += 1
        item = claim(working)
    finish(working, mine, tiling.num_items)
    total = tiling.num_merges * shape.num_kv_heads
    if total == 0:
        return
    mine = 0
    item = claim(merging)
    while item < total:
        _merge_parts(item, layer, tiling, shape, row_routines, scratch)
        mine += 1
        item = claim(merging)
    finish(merging, mine, total)
