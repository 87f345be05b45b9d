"""Attention over a paged cache, for any run of rows: one new token of a sequence or thousands.

The context of a row is cut into splits of whole blocks, fixed by position. In each split, in order:

    scores = q · K      highest = max(scores)      p = 2 ** (scores - highest)      mass = Σ p
    piece = p · V

and the pieces are merged in the order of the splits. Where a row sees sinks these come first, as a
piece of their own, met by queries that were rotated as if the window followed right behind them
(StreamingLLM, arXiv 2309.17453): so no page is ever rotated anew. Where scores are capped it is
before they meet others (Gemma 2, arXiv 2408.00118), and sink logits, which have no values, join the
mass once all pieces are merged (gpt-oss, arXiv 2508.10925). Every sum has one order, fixed by
positions alone. So a row's result does not depend on the other rows of the batch, on how a prompt
was cut into chunks, on where its blocks lie or on the number of threads; not in a single bit.

Queries and p are rounded to the dtype of the cache before they meet K and V, or queries to whole
numbers (`whole_form`), and sums before they are turned back from the basis of values; all else
is float32.
Few rows are worked on for all heads at once, because K of all heads lie side by side in a block,
and memory is fastest when it is read in long runs; many rows one head at a time, so that they stay
in cache. Tokens of sequences that share the blocks of a split are worked on together, so that the
split is read once.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from numba import njit
from numba.extending import register_jitable

from pagoda.kernels.cpu.attention_products import (
    Heads,
    Span,
    gather_scales,
    keys_of,
    plain_latents,
    score_split,
    values_of,
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
from pagoda.kernels.cpu.attention_scratch import Scratch, scratch_of_rows, split_tokens
from pagoda.kernels.cpu.attention_tiling import Merge, TilingAddresses, WorkItem, work_item
from pagoda.kernels.cpu.code_scales import scales_of, sum_rows_routine
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.next_keys import put_next_keys
from pagoda.kernels.cpu.number import integer_at, integers_at
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.page_product import HeadRoutines
from pagoda.kernels.cpu.pages import LayerPages, matrix_bytes
from pagoda.kernels.cpu.routine import call
from pagoda.kernels.cpu.softmax import KEY_OFFSET, WIDTH
from pagoda.kernels.cpu.team import Team, claim, claim_near, finish
from pagoda.kernels.cpu.turn import turn_routine
from pagoda.kernels.cpu.whole_queries import round_queries_routine

_STRIP_ROWS = 96
EVERY_TOKEN = 2**31 - 1
"""A window that ends before no token."""


class RowRoutines(NamedTuple):
    """Addresses of what is done to rows beside the products; see `attention_rows`."""

    load: int
    sum_queries: int
    """0 where keys have no offsets, or queries are whole, whose sums are known."""
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
        *_load_routines(form),
        soften_routine(form.paired, scales_of(form)).address,
        merge_routine().address,
        clear_routine().address,
        save_routine().address,
        finish_routine(paired_out).address,
        0 if form.value is None else turn_routine(form.head_dim, form.paired).address,
    )


def _load_routines(form: PageForm) -> tuple[int, int]:
    if form.wide is not None:
        return round_queries_routine(form.head_dim, form.wide).address, 0
    sum_queries = 0
    if KEY_OFFSET in scales_of(form):
        sum_queries = sum_rows_routine(form.paired, form.head_dim).address
    return load_routine(form.paired, form.head_dim).address, sum_queries


_MERGE_FIELDS = len(Merge._fields)


class Layer(NamedTuple):
    """Where one layer's attention reads and writes: addresses."""

    out: int
    """[rows, num_heads * value_dim], written"""
    out_bytes: int
    """From row to row."""
    queries: int
    """[rows, num_heads * head_dim or more] float32, heads first"""
    query_bytes: int
    """From row to row."""
    sink_queries: int
    """As `queries`, rotated for the distance of sinks; 0: no row sees sinks apart."""
    sink_bytes: int
    """From row to row."""
    blocks: int
    """Of the cache."""
    scale: int
    """[1] float32, times log2(e): multiplies q · k"""
    logit_cap: int
    """[1] float32, times log2(e): a score s becomes cap · tanh(s / cap); 0: it stays"""
    sink_logits: int
    """[num_heads] float32, times log2(e): one more logit for each query head; 0: none"""
    pages: LayerPages
    """How the blocks are laid out."""


@register_jitable(error_model="numpy")
def strip_tokens(group_size: int) -> int:
    """Tokens that meet a split at once: enough rows to keep the multipliers busy, few enough for
    their scores to stay in cache. Tiles have one strip or more, all of which meet what codes of a
    split were decoded to once."""
    return max(1, _STRIP_ROWS // group_size)


@njit(error_model="numpy")
def _finish_rows(
    layer: Layer, tokens: int, count: int, heads: Heads, shape: HeadShape,
    row_routines: RowRoutines, scratch: Scratch,
) -> None:  # fmt: skip
    """Write what `count` tokens get from some heads, whose sums are complete and are changed."""
    first_head, end_head = heads
    rows, value_dim = count * shape.group_size, shape.value_dim
    matrices = layer.pages.codes.output_turn
    if matrices != 0:
        for head in range(first_head, end_head):
            sums = scratch.sums + (head - first_head) * rows * value_dim * 4
            matrix = matrices + head * matrix_bytes(layer.pages, value_dim)
            call(row_routines.turn, (sums, value_dim, matrix, rows, scratch.added))
    call(
        row_routines.finish,
        (layer.out, layer.out_bytes, tokens, count, first_head, end_head, shape.group_size,
         value_dim, scratch.sums, scratch.highest, scratch.mass, layer.sink_logits),
    )  # fmt: skip


@njit(error_model="numpy")
def _load_queries(
    queries: int, query_bytes: int, tokens: int, count: int, heads: Heads, shape: HeadShape,
    row_routines: RowRoutines, scratch: Scratch,
) -> None:  # fmt: skip
    """Take the queries of `count` tokens and some heads into the thread's memory."""
    first_head, end_head = heads
    call(
        row_routines.load,
        (scratch.query, scratch.query_steps, scratch.query_sums, queries, query_bytes, tokens,
         count, first_head, end_head, shape.group_size),
    )  # fmt: skip
    if row_routines.sum_queries != 0:
        rows = (end_head - first_head) * count * shape.group_size
        call(row_routines.sum_queries, (scratch.query_sums, scratch.query, rows))


@njit(error_model="numpy")
def _attend_span(
    span: Span, window: int, tokens: int, count: int, heads: Heads, table: int, layer: Layer,
    tiling: TilingAddresses, shape: HeadShape, routines: HeadRoutines, row_routines: RowRoutines,
    scratch: Scratch,
) -> None:  # fmt: skip
    """What `count` tokens get from a span of one split: a piece, which is added to nothing yet.

    window: tokens that a row sees, its own included.
    """
    origin, begin, end = span
    head_rows = count * shape.group_size
    if begin >= end:  # it lies before the window
        rows = (heads[1] - heads[0]) * head_rows
        call(
            row_routines.clear,
            (scratch.added, scratch.added_highest, scratch.added_mass, rows, shape.value_dim),
        )
        return
    in_blocks = -(-(end - origin) // shape.block_size) * shape.block_size
    used = -(-in_blocks // WIDTH) * WIDTH
    blocks, pages, table = plain_latents(
        scratch, layer.blocks, layer.pages, table, span, shape, routines
    )
    keys = keys_of(scratch, head_rows, blocks, pages, table, span, heads, shape, routines)
    values = values_of(scratch, head_rows, blocks, pages, table, span, heads, shape, routines)
    strip_size, has_scales = strip_tokens(shape.group_size), False
    for first in range(0, count, strip_size):
        strip = min(strip_size, count - first)
        own = scratch_of_rows(scratch, first * shape.group_size, shape, routines)
        rows, own_tokens = strip * shape.group_size, tokens + first * 8
        own_end = min(end, _positions(tiling.positions, own_tokens, strip)[1] + 1)
        if begin >= own_end:  # it lies behind all of them
            call(
                row_routines.clear,
                (own.added, own.added_highest, own.added_mass, rows, shape.value_dim),
            )
            continue
        own_span = (origin, begin, own_end)
        score_split(
            own, rows, keys, values.first, blocks, pages, table, own_span, heads, shape, routines
        )
        if not has_scales:
            gather_scales(own, blocks, pages, table, span, heads, used, shape, routines)
            has_scales = True
        call(
            row_routines.soften,
            (own.scores, own.weights, own.width, used, tiling.positions, own_tokens, strip,
             heads[1] - heads[0], shape.group_size, origin, begin, own_end, window, layer.scale,
             layer.logit_cap, own.added_highest, own.added_mass, own.scales, own.query_sums,
             own.query_steps, own.offsets),
        )  # fmt: skip
        weigh_split(own, rows, values, pages, own_span, heads, shape, routines)


@njit(error_model="numpy")
def _positions(positions: int, tokens: int, count: int) -> tuple[int, int]:
    """The lowest and the highest of `count` tokens."""
    low = high = integer_at(positions, integer_at(tokens, 0, 64), 32)
    for t in range(1, count):
        position = integer_at(positions, integer_at(tokens, t, 64), 32)
        low, high = min(low, position), max(high, position)
    return low, high


@njit(error_model="numpy")
def _merge_piece(rows: int, value_dim: int, row_routines: RowRoutines, scratch: Scratch) -> None:
    """Add the newest piece to the rows' state."""
    call(
        row_routines.merge,
        (scratch.sums, scratch.highest, scratch.mass, scratch.added, scratch.added_highest,
         scratch.added_mass, rows, value_dim),
    )  # fmt: skip


@njit(error_model="numpy")
def _attend_item(
    item: int, next_item: int, layer: Layer, tiling: TilingAddresses, shape: HeadShape,
    routines: HeadRoutines, row_routines: RowRoutines, scratch: Scratch,
) -> None:  # fmt: skip
    """Do one item of the tiling's work; `next_item` is likely to follow, if there is one."""
    work = work_item(tiling, item)
    table = tiling.block_tables + work.sequence * tiling.table_bytes
    tokens, count = tiling.tokens + work.first * 8, work.num_tokens
    heads = (work.first_head, work.end_head)
    value_dim = shape.value_dim
    rows = (work.end_head - work.first_head) * count * shape.group_size
    call(row_routines.clear, (scratch.sums, scratch.highest, scratch.mass, rows, value_dim))
    low, high = _positions(tiling.positions, tokens, count)
    window = integer_at(tiling.windows, work.sequence * 2, 32)
    sinks = integer_at(tiling.windows, work.sequence * 2 + 1, 32)
    split_size = split_tokens(shape.block_size)
    first_seen, last_seen = max(low - window + 1, sinks), high + 1
    is_part = item < tiling.num_parts
    first_split = work.first_split
    if not is_part:
        first_split = max(first_split, first_seen // split_size)
    if work.takes_sinks != 0:
        put_next_keys(
            scratch, layer.blocks, layer.pages, work, next_item, first_split, tiling, shape
        )
        _load_queries(
            layer.sink_queries, layer.sink_bytes, tokens, count, heads, shape,
            row_routines, scratch,
        )  # fmt: skip
        for origin in range(0, sinks, split_size):
            span = (origin, origin, min(sinks, last_seen, origin + split_size))
            _attend_span(
                span, EVERY_TOKEN, tokens, count, heads, table, layer, tiling, shape, routines,
                row_routines, scratch,
            )  # fmt: skip
            _merge_piece(rows, value_dim, row_routines, scratch)
    _load_queries(
        layer.queries, layer.query_bytes, tokens, count, heads, shape, row_routines, scratch,
    )  # fmt: skip
    for split in range(first_split, work.end_split):
        origin = split * split_size
        span = (origin, max(first_seen, origin), min(last_seen, origin + split_size))
        put_next_keys(scratch, layer.blocks, layer.pages, work, next_item, split + 1, tiling, shape)
        _attend_span(
            span, window, tokens, count, heads, table, layer, tiling, shape, routines,
            row_routines, scratch,
        )  # fmt: skip
        if is_part and work.takes_sinks == 0:
            _save_part(
                scratch.added, scratch.added_highest, scratch.added_mass, work, tokens, tiling,
                shape, row_routines,
            )  # fmt: skip
        else:
            _merge_piece(rows, value_dim, row_routines, scratch)
    if not is_part:
        _finish_rows(layer, tokens, count, heads, shape, row_routines, scratch)
    elif work.takes_sinks != 0:
        _save_part(
            scratch.sums, scratch.highest, scratch.mass, work, tokens, tiling, shape, row_routines
        )


@njit(error_model="numpy")
def _save_part(
    sums: int, highest: int, mass: int, work: WorkItem, tokens: int, tiling: TilingAddresses,
    shape: HeadShape, row_routines: RowRoutines,
) -> None:  # fmt: skip
    """Keep the state of an item's rows after its one split, to be merged later."""
    call(
        row_routines.save,
        (tiling.parts, tiling.part_bytes, tiling.starts, work.first_split, tokens,
         work.num_tokens, work.first_head, work.end_head, shape.num_kv_heads, shape.group_size,
         shape.value_dim, sums, highest, mass),
    )  # fmt: skip


@njit(error_model="numpy")
def _merge_parts(
    item: int, layer: Layer, tiling: TilingAddresses, shape: HeadShape, row_routines: RowRoutines,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Merge one row's parts, of one KV head, in the order of splits."""
    number, head = item // shape.num_kv_heads, item % shape.num_kv_heads
    place = tiling.merges + number * _MERGE_FIELDS * 8
    merge = Merge(*integers_at(place, _MERGE_FIELDS))
    group_size, value_dim = shape.group_size, shape.value_dim
    num_heads = shape.num_kv_heads * group_size
    call(row_routines.clear, (scratch.sums, scratch.highest, scratch.mass, group_size, value_dim))
    for part_number in range(merge.first_part, merge.first_part + merge.num_parts):
        part = tiling.parts + part_number * tiling.part_bytes
        highest = part + (num_heads * value_dim + head * group_size) * 4
        call(
            row_routines.merge,
            (scratch.sums, scratch.highest, scratch.mass,
             part + head * group_size * value_dim * 4, highest, highest + num_heads * 4,
             group_size, value_dim),
        )  # fmt: skip
    _finish_rows(layer, place, 1, (head, head + 1), shape, row_routines, scratch)


@njit(error_model="numpy")
def _next_item(team: Team, phase: int, tiling: TilingAddresses) -> int:
    """The next item of `attend`."""
    return claim(phase) if tiling.in_turn != 0 else claim_near(team, phase, tiling.num_items)


@njit(error_model="numpy")
def attend(
    working: int, merging: int, team: Team, layer: Layer, tiling: TilingAddresses,
    shape: HeadShape, routines: HeadRoutines, row_routines: RowRoutines, scratch: Scratch,
) -> None:  # fmt: skip
    """A thread's share of the attention of one layer.

    working, merging: phases that nobody has begun, the same for all threads; scratch: this one's
    own.
    """
    mine = 0
    further = team.num_threads if tiling.in_turn != 0 else 1
    item = _next_item(team, working, tiling)
    while item < tiling.num_items:
        _attend_item(item, item + further, layer, tiling, shape, routines, row_routines, scratch)
        mine += 1
        item = _next_item(team, working, tiling)
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
