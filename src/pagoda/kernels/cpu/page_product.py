"""The products with K and with V in pages, as routines.

They are made of `tile.Tile`, which says in which order is summed. They take addresses, and strides
from row to row in groups of four bytes, one float32 or two bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import (
    Columns,
    Tile,
    blocks_at_once,
    chunks,
    for_each_tile,
    most_rows,
    vector_lanes,
    vectors,
)
from pagoda.kernels.cpu.vector import I32, after, index, pointer, prefetch, row_pointers


class HeadRoutines(NamedTuple):
    """What attention calls for heads and blocks of one size."""

    score: int
    """Address of `score_tokens`."""
    score_blocks: int
    """Blocks that it takes."""
    weigh: int
    """Address of `weigh_tokens`."""


@cache
def head_routines(paired: bool, head_dim: int, block_size: int) -> HeadRoutines:
    """For a cache of bfloat16, which come in pairs, or of float32.

    Compiles them or takes them from disk. Pairs lie along head_dim and along block_size: both are
    even then.
    """
    shape = (paired, head_dim, block_size)
    return HeadRoutines(
        _score_routine(*shape).address,
        blocks_at_once(block_size),
        _weigh_routine(*shape).address,
    )


@cache
def _score_routine(paired: bool, head_dim: int, block_size: int) -> Any:
    def score_tokens(
        out: int, out_stride: int, x: int, x_stride: int, keys: int, ahead: int, block_stride: int,
        table: int, first: int, following: int, last: int, rows: int, num_heads: int,
    ) -> None:  # fmt: skip
        """out[head, row, token] = x[head, row] · K of a few blocks' tokens.

        The blocks are table[first] and those after it before `last`, `blocks_at_once(block_size)`
        of them. out: float32, from the column of the first token; x and it have `rows` for each of
        `num_heads`. table: int32. Block b has keys, [num_heads, head_dim, block_size] with groups
        together, at keys + b · block_stride bytes. Meanwhile as much is asked from memory at
        ahead + b · block_stride of the blocks from table[following] on.
        """
        _score_tokens(
            (out, out_stride, x, x_stride, keys, ahead, block_stride, table, first, following,
             last, rows, num_heads),
            paired, head_dim, block_size,
        )  # fmt: skip

    return compiled(score_tokens, 13)


@emitted
def _score_tokens(typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any) -> Any:
    size = block_size.literal_value
    depth = head_dim.literal_value // _pack(paired)
    num_blocks = blocks_at_once(size)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, out_stride, x, x_stride, keys, ahead, block_stride, table = values[:8]
        first, following, last, rows, num_heads = values[8:]
        pages = _Pages(builder, table, block_stride)
        bases = [pages.at(keys, first, last, i) for i in range(num_blocks)]
        asked = [pages.at(ahead, following, last, i) for i in range(num_blocks)]

        def emit_tile(count: int, first_row: Any, head: Any, start: Any, columns: Columns) -> None:
            row = builder.add(builder.mul(head, rows), first_row)
            x_rows = _rows(builder, x, x_stride, row, count)
            out_rows = _rows(builder, out, out_stride, row, count)
            tile = Tile(builder, paired.literal_value, count, [n for _, n in columns] * num_blocks)
            begin = builder.add(builder.mul(head, index(depth * size)), start)
            with cgutils.for_range(builder, index(depth)) as loop:
                line = builder.add(begin, builder.mul(loop.index, index(size)))
                tile.add(
                    [builder.gep(each, [loop.index]) for each in x_rows],
                    [after(builder, base, line, column) for base in bases for column, _ in columns],
                )
                for base in asked:
                    for column, _ in columns:
                        prefetch(builder, after(builder, base, line, column))
            for i in range(num_blocks):
                place = builder.add(start, index(i * size))
                targets = [builder.gep(each, [place]) for each in out_rows]
                tile.store(targets, i * len(columns), len(columns))

        _for_each_tile(builder, num_heads, rows, size, num_blocks, emit_tile)

    return routine_body(args, (paired, head_dim, block_size), emit)


@cache
def _weigh_routine(paired: bool, head_dim: int, block_size: int) -> Any:
    def weigh_tokens(
        out: int, out_stride: int, x: int, x_stride: int, values: int, block_stride: int,
        table: int, origin: int, begin: int, end: int, following: int, rows: int, num_heads: int,
    ) -> None:  # fmt: skip
        """out[head, row] = Σ x[head, row, token - origin] · V over tokens begin … end - 1.

        out: float32; x and it have `rows` for each of `num_heads`. x: 0 for a token before `begin`
        in its group. table: int32. Block b has values, [num_heads, block_size, head_dim] with
        groups together, at values + b · block_stride bytes. origin: a token, first of its block.
        What lies after `end` is not used. Each block is asked from memory one ahead, and with the
        last as much at `following`.
        """
        _weigh_tokens(
            (out, out_stride, x, x_stride, values, block_stride, table, origin, begin, end,
             following, rows, num_heads),
            paired, head_dim, block_size,
        )  # fmt: skip

    return compiled(weigh_tokens, 13)


@emitted
def _weigh_tokens(typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any) -> Any:
    pack = _pack(paired)
    width, per_block = head_dim.literal_value, block_size.literal_value // pack

    def emit(builder: Any, arguments: Sequence[Any]) -> None:
        out, out_stride, x, x_stride, values, block_stride, table = arguments[:7]
        origin, begin, end, following, rows, num_heads = arguments[7:]
        pages = _Pages(builder, table, block_stride)
        one = index(1)
        origin, begin = (builder.sdiv(token, index(pack)) for token in (origin, begin))
        whole = builder.sdiv(end, index(pack))
        first_block = builder.sdiv(begin, index(per_block))
        last_block = builder.sdiv(builder.add(whole, index(per_block - 1)), index(per_block))
        final_block = builder.sdiv(whole, index(per_block))

        def emit_tile(count: int, first_row: Any, head: Any, start: Any, columns: Columns) -> None:
            row = builder.add(builder.mul(head, rows), first_row)
            x_rows = _rows(builder, x, x_stride, row, count)
            out_rows = _rows(builder, out, out_stride, row, count)
            tile = Tile(builder, paired.literal_value, count, [n for _, n in columns])
            head_start = builder.add(builder.mul(head, index(width * per_block)), start)

            def add(base: Any, ahead: Any, block: Any, group: Any, mask: Any) -> None:
                """Products of one group of tokens, number `group` in its block."""
                place = builder.add(builder.mul(block, index(per_block)), group)
                place = builder.sub(place, origin)
                line = builder.add(head_start, builder.mul(group, index(width)))
                tile.add(
                    [builder.gep(each, [place]) for each in x_rows],
                    [after(builder, base, line, column) for column, _ in columns],
                    mask,
                )
                if ahead is not None:
                    for column, _ in columns:
                        prefetch(builder, after(builder, ahead, line, column))

            with cgutils.for_range_slice(builder, first_block, last_block, one) as (block, _):
                base = pages.at(values, block, last_block, 0)
                ahead = builder.select(
                    builder.icmp_signed("<", builder.add(block, one), last_block),
                    pages.at(values, block, last_block, 1),
                    pointer(builder, following),
                )
                before = builder.mul(block, index(per_block))
                low = _bounded(builder, builder.sub(begin, before), per_block)
                high = _bounded(builder, builder.sub(whole, before), per_block)
                with cgutils.for_range_slice(builder, low, high, one) as (group, _):
                    add(base, ahead, block, group, None)
            if pack > 1:
                odd = builder.icmp_signed("!=", builder.mul(whole, index(pack)), end)
                with builder.if_then(odd):
                    base = pages.at(values, final_block, builder.add(final_block, one), 0)
                    group = builder.sub(whole, builder.mul(final_block, index(per_block)))
                    add(base, None, final_block, group, ir.Constant(I32, 0xFFFF))
            tile.store([builder.gep(each, [start]) for each in out_rows])

        _for_each_tile(builder, num_heads, rows, width, 1, emit_tile)

    return routine_body(args, (paired, head_dim, block_size), emit)


class _Pages:
    """Where blocks of a cache lie."""

    def __init__(self, builder: Any, table: Any, stride: Any) -> None:
        self._builder, self._stride = builder, stride
        self._ids = pointer(builder, table)

    def at(self, address: Any, first: Any, last: Any, number: int) -> Any:
        """Pointer to the address that belongs to block table[first + number].

        Beyond `last` it is the block before that.
        """
        builder = self._builder
        entry, final = builder.add(first, index(number)), builder.sub(last, index(1))
        inside = builder.icmp_signed("<", entry, final)
        entry = builder.select(inside, entry, final)
        block = builder.sext(builder.load(builder.gep(self._ids, [entry])), index(0).type)
        return pointer(builder, builder.add(address, builder.mul(block, self._stride)))


def _for_each_tile(
    builder: Any, num_heads: Any, rows: Any, width: int, num_blocks: int, emit: Callable[..., None]
) -> None:
    """Cut the rows of each head, of so many columns in each of some blocks, into tiles.

    Few columns are taken whole, many a few vectors at a time. `emit` gets a tile's rows, the first
    of them, its head, its first column and its columns from there on.
    """
    with cgutils.for_range(builder, num_heads) as heads:
        for column, number, lanes in chunks(vector_lanes(width)):
            columns, size = vectors(lanes), sum(lanes)
            most = most_rows(len(lanes) * num_blocks)
            with cgutils.for_range(builder, index(number)) as loop:
                start = builder.add(index(column), builder.mul(loop.index, index(size)))
                emit_columns = partial(emit, head=heads.index, start=start, columns=columns)
                for_each_tile(builder, rows, most, emit_columns)


def _rows(builder: Any, address: Any, stride: Any, first: Any, count: int) -> list[Any]:
    """Pointers to rows from number `first` on."""
    start = builder.gep(pointer(builder, address), [builder.mul(first, stride)])
    return row_pointers(builder, start, stride, count)


def _pack(paired: Any) -> int:
    """Numbers in a group."""
    return 2 if paired.literal_value else 1


def _bounded(builder: Any, value: Any, most: int) -> Any:
    """The value, at least 0 and at most `most`."""
    for comparison, bound in (("<", 0), (">", most)):
        beyond = builder.icmp_signed(comparison, value, index(bound))
        value = builder.select(beyond, index(bound), value)
    return value
