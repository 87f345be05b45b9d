"""The two products of attention with one split of a context: with its keys, and with its values.

Few rows decode codes on the way, again for each tile of rows. For many rows codes are decoded once,
to plain numbers. Both sum the same numbers in the same order, so no bit depends on which it was.
Values that are a part of keys are always turned into values first. Coded latents become plain ones
before either product, which then is as ever.
"""

from __future__ import annotations

from numba import njit

from pagoda.kernels.cpu.attention_scratch import Scratch, split_tokens
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.level_tables import HEAD_TABLE_BYTES
from pagoda.kernels.cpu.number import integer_at, put_integer
from pagoda.kernels.cpu.page_product import HeadRoutines
from pagoda.kernels.cpu.pages import LayerPages
from pagoda.kernels.cpu.routine import call
from pagoda.kernels.cpu.vector import LINE_BYTES, ask
from pagoda.kernels.page_layout import PageLayout

_MOST_DECODING_ROWS = 12

Span = tuple[int, int, int]
"""Tokens of one split: where the split starts, the first token that counts, the end of those."""

Heads = tuple[int, int]
"""The first KV head to work on, and the end of those."""


@njit(error_model="numpy")
def plain_latents(
    scratch: Scratch, blocks: int, pages: LayerPages, table: int, span: Span, shape: HeadShape,
    routines: HeadRoutines,
) -> tuple[int, LayerPages, int]:  # fmt: skip
    """Blocks, how they are laid out and the table of them, in which products read a span.

    Where latents are codes, those are blocks in the thread's memory, decoded for all heads and
    rows that meet the span; else it is what was given.
    """
    if routines.unpack_latents == 0:
        return blocks, pages, table
    _, begin, end = span
    first, last = begin // shape.block_size, (end + shape.block_size - 1) // shape.block_size
    call(
        routines.unpack_latents,
        (scratch.latents, blocks, pages.layout.block_bytes, table, first, last),
    )
    numbers = _number(scratch.latents, last - first, shape)
    size = shape.head_dim * shape.block_size * pages.item_size
    layout = PageLayout(size, size, 0, size, size, 0, size, 0)
    plain = LayerPages(layout, pages.item_size, pages.codes)
    return scratch.latents, plain, numbers - first * 4


@njit(error_model="numpy")
def score_split(
    scratch: Scratch, rows: int, blocks: int, pages: LayerPages, table: int, span: Span,
    heads: Heads, shape: HeadShape, routines: HeadRoutines,
) -> None:  # fmt: skip
    """scores[row, token - origin] = q · k for all tokens of the blocks that hold the span."""
    origin, begin, end = span
    first_head, end_head = heads
    block_size, layout = shape.block_size, pages.layout
    stride = shape.head_dim * pages.item_size // 4
    first, last = begin // block_size, (end + block_size - 1) // block_size
    scores = scratch.scores + (first * block_size - origin) * 4
    if routines.unpack_keys != 0 and rows > _MOST_DECODING_ROWS:
        for head in range(first_head, end_head):
            row = (head - first_head) * rows
            _score_unpacked(
                scratch, rows, scores + row * scratch.width * 4, scratch.query + row * stride * 4,
                blocks, pages, table, first, last, head, shape, routines,
            )  # fmt: skip
    else:
        keys = blocks + first_head * layout.key_head_bytes
        values = blocks + layout.values + first_head * layout.value_head_bytes
        for block in range(first, last, routines.score_blocks):
            following, ahead = block + routines.score_blocks, keys
            if following >= last:  # after the last K comes the first V
                following, ahead = first, values
            for each in range(block, min(block + routines.score_blocks, last)):
                _ask_scales(
                    blocks + integer_at(table, each, 32) * layout.block_bytes, layout, heads
                )
            call(
                routines.score,
                (scores + (block - first) * block_size * 4, scratch.width, scratch.query, stride,
                 keys, ahead, layout.block_bytes, table, block, following, last, rows,
                 end_head - first_head, pages.codes.key_levels + first_head * HEAD_TABLE_BYTES),
            )  # fmt: skip


@njit(error_model="numpy")
def _score_unpacked(
    scratch: Scratch, rows: int, scores: int, query: int, blocks: int, pages: LayerPages,
    table: int, first: int, last: int, head: int, shape: HeadShape, routines: HeadRoutines,
) -> None:  # fmt: skip
    """Scores of one head with the blocks table[first] … table[last - 1], from its own rows on.

    As many blocks as are scored together are decoded and met at once, while they are in cache.
    """
    keys = blocks + head * pages.layout.key_head_bytes
    levels = pages.codes.key_levels + head * HEAD_TABLE_BYTES
    size = shape.head_dim * pages.item_size
    for block in range(first, last, routines.score_blocks):
        end = min(block + routines.score_blocks, last)
        numbers = _unpack(
            scratch, routines.unpack_keys, keys, pages.layout.block_bytes, table, block, end,
            levels, shape,
        )  # fmt: skip
        call(
            routines.score_unpacked,
            (scores + (block - first) * shape.block_size * 4, scratch.width, query, size // 4,
             scratch.unpacked, scratch.unpacked, shape.block_size * size, numbers, 0, 0,
             end - block, rows, 1, 0),
        )  # fmt: skip


@njit(error_model="numpy")
def gather_scales(
    scratch: Scratch, blocks: int, pages: LayerPages, table: int, span: Span, heads: Heads,
    used: int, shape: HeadShape, routines: HeadRoutines,
) -> None:  # fmt: skip
    """scales[head, row, token - origin] of all tokens of the blocks that hold the span."""
    if routines.gather_scales == 0:
        return
    origin, begin, end = span
    layout, size = pages.layout, shape.block_size
    first, last = begin // size, (end + size - 1) // size
    call(
        routines.gather_scales,
        (scratch.scales + (first * size - origin) * 4, used,
         blocks + layout.key_scales + heads[0] * layout.key_scale_bytes,
         blocks + layout.value_scales + heads[0] * layout.value_scale_bytes,
         layout.key_scale_bytes, layout.value_scale_bytes, layout.block_bytes, table, first, last,
         heads[1] - heads[0]),
    )  # fmt: skip


@njit(error_model="numpy")
def weigh_split(
    scratch: Scratch, rows: int, blocks: int, pages: LayerPages, table: int, span: Span,
    heads: Heads, shape: HeadShape, routines: HeadRoutines, following: int,
) -> None:  # fmt: skip
    """added[row] = Σ weights[row, token - origin] · v over the span's tokens, and no others.

    following: what is asked from memory meanwhile, at last.
    """
    origin, begin, end = span
    first_head, end_head = heads
    layout, num_heads, value_dim = pages.layout, end_head - first_head, shape.value_dim
    stride = scratch.width * pages.item_size // 4
    if routines.weigh == 0 or (routines.unpack_values != 0 and rows > _MOST_DECODING_ROWS):
        for head in range(first_head, end_head):
            row = (head - first_head) * rows
            _weigh_unpacked(
                scratch, rows, scratch.added + row * value_dim * 4,
                scratch.weights + row * stride * 4, stride, blocks, pages, table, span, head,
                shape, routines, following,
            )  # fmt: skip
    else:
        values = blocks + layout.values + first_head * layout.value_head_bytes
        call(
            routines.weigh,
            (scratch.added, value_dim, scratch.weights, stride, values, layout.block_bytes, table,
             origin, begin, end, following, rows, num_heads,
             pages.codes.value_levels + first_head * HEAD_TABLE_BYTES),
        )  # fmt: skip
    if routines.add_offsets != 0:
        call(routines.add_offsets, (scratch.added, scratch.offsets, rows * num_heads, value_dim))


@njit(error_model="numpy")
def _weigh_unpacked(
    scratch: Scratch, rows: int, added: int, weights: int, stride: int, blocks: int,
    pages: LayerPages, table: int, span: Span, head: int, shape: HeadShape,
    routines: HeadRoutines, following: int,
) -> None:  # fmt: skip
    """The sums of one head, from its own rows on."""
    origin, begin, end = span
    layout, size = pages.layout, shape.block_size
    first, last = begin // size, (end + size - 1) // size
    values = blocks + layout.values + head * layout.value_head_bytes
    levels = pages.codes.value_levels + head * HEAD_TABLE_BYTES
    numbers = _unpack(
        scratch, routines.unpack_values, values, layout.block_bytes, table, first, last, levels,
        shape,
    )  # fmt: skip
    moved = first * size
    call(
        routines.weigh_unpacked,
        (added, shape.value_dim, weights, stride, scratch.unpacked,
         size * shape.value_dim * pages.item_size, numbers, origin - moved, begin - moved,
         end - moved, following, rows, 1, 0),
    )  # fmt: skip


@njit(error_model="numpy")
def _unpack(
    scratch: Scratch, routine: int, codes: int, stride: int, table: int, first: int, last: int,
    levels: int, shape: HeadShape,
) -> int:  # fmt: skip
    """Decode a head's codes of the blocks table[first] … table[last - 1].

    Returns the table of the blocks that they have become: 0, 1, 2 …
    """
    call(routine, (scratch.unpacked, codes, stride, table, first, last, levels))
    return _number(scratch.unpacked, last - first, shape)


@njit(error_model="numpy")
def _number(unpacked: int, count: int, shape: HeadShape) -> int:
    """Write the table 0, 1, 2 … of so many blocks behind them; returns where."""
    numbers = unpacked + split_tokens(shape.block_size) * shape.head_dim * 4
    for number in range(count):
        put_integer(numbers, number, number)
    return numbers


@njit(error_model="numpy")
def _ask_scales(block: int, layout: PageLayout, heads: Heads) -> None:
    """Ask for the scales of some heads, which are taken once all scores of a split are there."""
    for scales, head_bytes in (
        (layout.key_scales, layout.key_scale_bytes),
        (layout.value_scales, layout.value_scale_bytes),
    ):
        for place in range(heads[0] * head_bytes, heads[1] * head_bytes, LINE_BYTES):
            ask(block + scales + place)
