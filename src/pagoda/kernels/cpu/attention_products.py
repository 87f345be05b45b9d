"""The two products of attention with one split of a context: with its keys, and with its values.

Few rows decode codes on the way, again for each tile of rows. For many rows of a head codes are
decoded once, to plain numbers, or whole ones. Both sum the same numbers in the same order, so no
bit depends on which it was. Values that are a part of keys are always turned into values first.
Coded latents become plain ones before either product, which then is as ever.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Side(NamedTuple):
    """Where a product reads the keys, or values, of a span, and by which routine: addresses."""

    first: int
    """Of the first head's, were it in block 0."""
    block_bytes: int
    """From block to block; no address."""
    table: int
    levels: int
    """What codes of the first head stand for."""
    routine: int


@njit(error_model="numpy")
def keys_of(
    scratch: Scratch, rows: int, blocks: int, pages: LayerPages, table: int, span: Span,
    heads: Heads, shape: HeadShape, routines: HeadRoutines,
) -> Side:  # fmt: skip
    """The keys of the blocks that hold a span, which `rows` of each head are to meet."""
    layout = pages.layout
    side = Side(
        blocks + heads[0] * layout.key_head_bytes, layout.block_bytes, table,
        pages.codes.key_levels + heads[0] * HEAD_TABLE_BYTES, routines.score,
    )  # fmt: skip
    if routines.unpack_keys == 0 or _decodes_on_the_way(rows, heads):
        return side
    call_at = routines.unpack_keys, routines.score_unpacked
    size = routines.key_groups * 4
    return _unpacked(scratch.keys, side, call_at, size, span, shape)


@njit(error_model="numpy")
def values_of(
    scratch: Scratch, rows: int, blocks: int, pages: LayerPages, table: int, span: Span,
    heads: Heads, shape: HeadShape, routines: HeadRoutines,
) -> Side:  # fmt: skip
    """Likewise the values."""
    layout = pages.layout
    side = Side(
        blocks + layout.values + heads[0] * layout.value_head_bytes, layout.block_bytes, table,
        pages.codes.value_levels + heads[0] * HEAD_TABLE_BYTES, routines.weigh,
    )  # fmt: skip
    if routines.unpack_values == 0 or (routines.weigh != 0 and _decodes_on_the_way(rows, heads)):
        return side
    call_at = routines.unpack_values, routines.weigh_unpacked
    size = shape.value_dim * pages.item_size
    return _unpacked(scratch.values, side, call_at, size, span, shape)


@njit(error_model="numpy")
def _decodes_on_the_way(rows: int, heads: Heads) -> bool:
    return rows <= _MOST_DECODING_ROWS or heads[1] - heads[0] > 1


@njit(error_model="numpy")
def _unpacked(
    memory: int, side: Side, call_at: tuple[int, int], size: int, span: Span, shape: HeadShape
) -> Side:
    """A head's codes as plain numbers of `size` bytes a token, in a thread's memory.

    call_at: the routines that decode them and that read what they have become.
    """
    _, begin, end = span
    first, last = begin // shape.block_size, (end + shape.block_size - 1) // shape.block_size
    call(call_at[0], (memory, side.first, side.block_bytes, side.table, first, last, side.levels))
    numbers = _number(memory, last - first, shape)
    return Side(memory, shape.block_size * size, numbers - first * 4, 0, call_at[1])


@njit(error_model="numpy")
def score_split(
    scratch: Scratch, rows: int, keys: Side, values: int, blocks: int, pages: LayerPages,
    table: int, span: Span, heads: Heads, shape: HeadShape, routines: HeadRoutines,
) -> None:  # fmt: skip
    """scores[row, token - origin] = q · k for all tokens of the blocks that hold the span.

    values: an address that is asked from memory once the last keys are read.
    """
    origin, begin, end = span
    block_size, layout = shape.block_size, pages.layout
    first, last = begin // block_size, (end + block_size - 1) // block_size
    scores = scratch.scores + (first * block_size - origin) * 4
    for block in range(first, last, routines.score_blocks):
        following, ahead = block + routines.score_blocks, keys.first
        if following >= last:  # after the last K comes the first V
            following, ahead = first, values
        if keys.routine == routines.score:
            for each in range(block, min(block + routines.score_blocks, last)):
                _ask_scales(
                    blocks + integer_at(table, each, 32) * layout.block_bytes, layout, heads
                )
        call(
            keys.routine,
            (scores + (block - first) * block_size * 4, scratch.width, scratch.query,
             routines.query_groups, keys.first, ahead, keys.block_bytes, keys.table, block,
             following, last, rows, heads[1] - heads[0], keys.levels),
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
    scratch: Scratch, rows: int, values: Side, pages: LayerPages, span: Span, heads: Heads,
    shape: HeadShape, routines: HeadRoutines,
) -> None:  # fmt: skip
    """added[row] = Σ weights[row, token - origin] · v over the span's tokens, and no others.

    What is at `scratch.next_keys` is asked from memory meanwhile, at last.
    """
    origin, begin, end = span
    num_heads, value_dim = heads[1] - heads[0], shape.value_dim
    call(
        values.routine,
        (scratch.added, value_dim, scratch.weights, scratch.width * pages.item_size // 4,
         values.first, values.block_bytes, values.table, origin, begin, end, scratch.next_keys,
         rows, num_heads, values.levels),
    )  # fmt: skip
    if routines.add_offsets != 0:
        call(routines.add_offsets, (scratch.added, scratch.offsets, rows * num_heads, value_dim))


@njit(error_model="numpy")
def _number(unpacked: int, count: int, shape: HeadShape) -> int:
    """Write the table 0, 1, 2 … of so many blocks behind them; returns where."""
    numbers = unpacked + split_tokens(shape.block_size) * shape.head_dim * 4
    for number in range(count):
        put_integer(numbers, number, number, 32)
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
