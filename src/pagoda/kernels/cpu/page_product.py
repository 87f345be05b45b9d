"""The products with K and with V in pages, as routines.

They are made of `tile.Tile`, which says in which order is summed, or of whole numbers, whose sums
have none (`whole_form`). They take addresses, and strides from row to row in groups of four bytes,
one float32 or two bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils
from numba.extending import register_jitable

from pagoda.kernels.cpu.choose_reader import key_reader, key_tile, value_reader
from pagoda.kernels.cpu.code_scales import (
    add_offsets_routine,
    gather_scales_routine,
    scales_of,
)
from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.page_readers import Pages, Piece
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.shared_values import share_routine
from pagoda.kernels.cpu.softmax import VALUE_OFFSET
from pagoda.kernels.cpu.tile import (
    Chunks,
    Columns,
    Tile,
    blocks_at_once,
    chunks,
    for_each_tile,
    most_rows,
    vector_lanes,
    vectors,
)
from pagoda.kernels.cpu.unpack import unpack_keys_routine, unpack_values_routine
from pagoda.kernels.cpu.unpack_latents import unpack_latents_routine
from pagoda.kernels.cpu.vector import I32, LINE_BYTES, index, pointer, row_pointers
from pagoda.kernels.cpu.whole_form import key_groups, whole_form

_TOKENS_AHEAD = 64
_MOST_BLOCKS_AHEAD = LINE_BYTES // 8
"""Addresses of blocks in a cache line."""


@register_jitable(error_model="numpy")
def value_blocks_ahead(block_size: int) -> int:
    """From the block whose values are read to the one that memory is asked for meanwhile.

    With few queries a block takes less time than memory takes to answer.
    """
    return min(_MOST_BLOCKS_AHEAD, -(-_TOKENS_AHEAD // block_size))


class HeadRoutines(NamedTuple):
    """What attention calls for heads and blocks of one form."""

    score: int
    """Address of `score_tokens`."""
    score_blocks: int
    """Blocks that it takes."""
    weigh: int
    """Address of `weigh_tokens`, or 0: values are a part of keys, and unpacked first."""
    gather_scales: int
    """Address of that routine, or 0: there are none. So the next one."""
    add_offsets: int
    unpack_keys: int
    """Address of `unpack_keys`, or 0: they are plain numbers. So the next one for values, or
    `share`."""
    unpack_values: int
    score_unpacked: int
    """As `score` and `weigh`, of plain numbers."""
    weigh_unpacked: int
    key_groups: int
    """Groups of four bytes of a key that is no code, or none any more."""
    query_groups: int
    """From query to query: those, and what else a row has."""
    unpack_latents: int = 0
    """Address of that routine, or 0: there are no latents, or they are plain numbers."""


@cache
def head_routines(form: PageForm) -> HeadRoutines:
    """Compiles them or takes them from disk.

    Pairs lie along head_dim and along block_size: both are even then.
    """
    if form.value_dim is not None:
        return _sharing_routines(form, form.value_dim)
    texts = ["" if code is None else code.text for code in (form.key, form.value)]
    shape = (form.paired, form.head_dim, form.block_size)
    return HeadRoutines(
        _score_routine(*shape, texts[0], form.wide).address,
        blocks_at_once(form.block_size),
        _weigh_routine(*shape, texts[1]).address,
        *_scale_routines(form),
        *_unpack_routines(form),
        *_groups(form),
    )


def _sharing_routines(form: PageForm, value_dim: int) -> HeadRoutines:
    """Of keys whose first numbers are the values: as plain numbers, which codes become first."""
    paired, head_dim, block_size = form[:3]
    coded, unpack = form.latent, 0
    if coded is not None:
        unpack = unpack_latents_routine(coded.text, paired, block_size).address
    return HeadRoutines(
        score=_score_routine(paired, head_dim, block_size, "").address,
        score_blocks=blocks_at_once(block_size),
        weigh=0,
        gather_scales=0,
        add_offsets=0,
        unpack_keys=0,
        unpack_values=share_routine(paired, value_dim, block_size).address,
        score_unpacked=0,
        weigh_unpacked=_weigh_routine(paired, value_dim, block_size, "").address,
        key_groups=head_dim // (1 + paired),
        query_groups=head_dim // (1 + paired),
        unpack_latents=unpack,
    )


def _scale_routines(form: PageForm) -> tuple[int, int]:
    scales, (block_size, key, value) = scales_of(form), form[2:5]
    if key is None or value is None or not scales:
        return 0, 0
    return (
        gather_scales_routine(block_size, key.text, value.text).address,
        add_offsets_routine().address if VALUE_OFFSET in scales else 0,
    )


def _unpack_routines(form: PageForm) -> tuple[int, int, int, int]:
    if form.key is None or form.value is None:
        return 0, 0, 0, 0
    shape = form[:3]
    return (
        unpack_keys_routine(*shape, form.key.text, form.wide).address,
        unpack_values_routine(*shape, form.value.text).address,
        _score_routine(*shape, "", form.wide).address,
        _weigh_routine(*shape, "").address,
    )


def _groups(form: PageForm) -> tuple[int, int]:
    """Of a key, and of a query, which has its start where it is whole."""
    groups = key_groups(form.paired, form.head_dim, form.wide)
    return groups, groups + (form.wide is not None)


@cache
def _score_routine(
    paired: bool, head_dim: int, block_size: int, code: str, wide: int | None = None
) -> Any:
    def score_tokens(
        out: int, out_stride: int, x: int, x_stride: int, keys: int, ahead: int, block_stride: int,
        table: int, first: int, following: int, last: int, rows: int, num_heads: int, levels: int,
    ) -> None:  # fmt: skip
        """out[head, row, token] = x[head, row] · K of a few blocks' tokens.

        The blocks are table[first] and those after it before `last`, `blocks_at_once(block_size)`
        of them. out: float32, from the column of the first token; x and it have `rows` for each of
        `num_heads`. table: int32. Block b has keys, as `page_readers` says, at
        keys + b · block_stride bytes. Meanwhile as much is asked from memory at
        ahead + b · block_stride of the blocks from table[following] on. levels: tables of what
        codes stand for, of each head as `level_tables` says.
        wide: as `PageForm` has it; x and keys that are no codes are groups of a `WholeForm` then.
        """
        _score_tokens(
            (out, out_stride, x, x_stride, keys, ahead, block_stride, table, first, following,
             last, rows, num_heads, levels),
            paired, head_dim, block_size, code, wide,
        )  # fmt: skip

    return compiled(score_tokens, 14)


@emitted
def _score_tokens(
    typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any, code: Any, wide: Any
) -> Any:
    size, is_paired = block_size.literal_value, paired.literal_value
    num_blocks, form = blocks_at_once(size), whole_form(head_dim, wide)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, out_stride, x, x_stride, keys, ahead, block_stride, table = values[:8]
        first, following, last, rows, num_heads, levels = values[8:]
        keys_of = key_reader(code.literal_value, head_dim.literal_value, size, is_paired, form)
        pages = Pages(builder, table, block_stride)
        bases = [pages.at(keys, first, last, i) for i in range(num_blocks)]
        asked = [pages.at(ahead, following, last, i) for i in range(num_blocks)]

        def emit_tile(count: int, first_row: Any, head: Any, start: Any, columns: Columns) -> None:
            row = builder.add(builder.mul(head, rows), first_row)
            x_rows = _rows(builder, x, x_stride, row, count)
            out_rows = _rows(builder, out, out_stride, row, count)
            tile = key_tile(builder, is_paired, form, x_rows, [n for _, n in columns] * num_blocks)

            def add(group: Any, read: Sequence[Any]) -> None:
                tile.add([builder.gep(each, [group]) for each in x_rows], read)

            keys_of.open(builder, head, levels)
            keys_of.for_each_group(builder, bases, asked, head, start, columns, add)
            for i in range(num_blocks):
                place = builder.add(start, index(i * size))
                targets = [builder.gep(each, [place]) for each in out_rows]
                tile.part(i * len(columns), len(columns)).store(targets)

        with cgutils.for_range(builder, num_heads) as heads:
            for piece in chunks(vector_lanes(size)):
                emit_head = partial(emit_tile, head=heads.index)
                _for_each_tile(builder, rows, piece, num_blocks, emit_head)

    return routine_body(args, (paired, head_dim, block_size, code, wide), emit)


@cache
def _weigh_routine(paired: bool, head_dim: int, block_size: int, code: str) -> Any:
    def weigh_tokens(
        out: int, out_stride: int, x: int, x_stride: int, values: int, block_stride: int,
        table: int, origin: int, begin: int, end: int, next_keys: int, rows: int, num_heads: int,
        levels: int,
    ) -> None:  # fmt: skip
        """out[head, row] = Σ x[head, row, token - origin] · V over tokens begin … end - 1.

        out: float32; x and it have `rows` for each of `num_heads`. x: 0 for tokens before `begin`
        that are read together with it (`ValueReader.at_once`), and where values are codes also for
        those from `end` on in its block. table: int32. Block b has values, as `page_readers` says,
        at values + b · block_stride bytes.
        origin: a token, first of its block. What plain numbers lie after `end` is not used. With
        each block memory is asked for the one `value_blocks_ahead` ahead, and with the last ones
        for as much at the addresses, so many int64, that lie at `next_keys`. levels: as
        `score_tokens` takes them.
        """
        _weigh_tokens(
            (out, out_stride, x, x_stride, values, block_stride, table, origin, begin, end,
             next_keys, rows, num_heads, levels),
            paired, head_dim, block_size, code,
        )  # fmt: skip

    return compiled(weigh_tokens, 14)


@emitted
def _weigh_tokens(
    typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any, code: Any
) -> Any:
    is_paired = paired.literal_value
    pack = 2 if is_paired else 1
    width, per_block = head_dim.literal_value, block_size.literal_value // pack

    def emit(builder: Any, arguments: Sequence[Any]) -> None:
        out, out_stride, x, x_stride, values, block_stride, table = arguments[:7]
        origin, begin, end, next_keys, rows, num_heads, levels = arguments[7:]
        values_of = value_reader(code.literal_value, width, block_size.literal_value, is_paired)
        pages = Pages(builder, table, block_stride)
        one, step = index(1), values_of.at_once
        later = value_blocks_ahead(block_size.literal_value)
        addresses = builder.inttoptr(next_keys, index(0).type.as_pointer())
        origin, begin = (builder.sdiv(token, index(pack)) for token in (origin, begin))
        whole = builder.sdiv(end, index(pack))
        if step > 1:
            begin = builder.mul(builder.sdiv(begin, index(step)), index(step))
            last = builder.add(end, index(pack * step - 1))
            whole = builder.mul(builder.sdiv(last, index(pack * step)), index(step))
        first_block = builder.sdiv(begin, index(per_block))
        last_block = builder.sdiv(builder.add(whole, index(per_block - 1)), index(per_block))
        final_block = builder.sdiv(whole, index(per_block))

        def asked(block: Any) -> Any:
            """What memory is asked for with a block: the values some blocks on, or what follows."""
            beyond = builder.sub(builder.add(block, index(later)), last_block)
            is_inside = builder.icmp_signed("<", beyond, index(0))
            number = builder.sub(block, first_block)
            is_sooner = builder.icmp_signed("<", number, beyond)  # there are fewer blocks than that
            place = builder.select(is_sooner, number, beyond)
            place = builder.select(is_inside, index(0), place)
            follows = builder.load(builder.gep(addresses, [place]))
            own = pages.at(values, block, last_block, later)
            return builder.select(is_inside, own, pointer(builder, follows))

        def emit_tile(
            count: int, first_row: Any, head: Any, start: Any, columns: Columns, piece: Piece
        ) -> None:
            row = builder.add(builder.mul(head, rows), first_row)
            x_rows = _rows(builder, x, x_stride, row, count)
            out_rows = _rows(builder, out, out_stride, row, count)
            tile = Tile(builder, is_paired, count, [n for _, n in columns])
            values_of.open(builder, head, levels)

            def add(base: Any, ahead: Any, block: Any, group: Any, mask: Any) -> None:
                """Products of groups of tokens, from number `group` of its block on."""
                place = builder.add(builder.mul(block, index(per_block)), group)
                place = builder.sub(place, origin)
                read = values_of.groups(builder, base, ahead, head, group, start, piece, columns)
                for before, groups in read:
                    part = tile.part(before, len(groups[0]))
                    for number, each in enumerate(groups):
                        at = builder.add(place, index(number))
                        part.add([builder.gep(row, [at]) for row in x_rows], each, mask)

            with cgutils.for_range_slice(builder, first_block, last_block, one) as (block, _):
                base = pages.at(values, block, last_block, 0)
                ahead = asked(block)
                before = builder.mul(block, index(per_block))
                low = _bounded(builder, builder.sub(begin, before), per_block)
                high = _bounded(builder, builder.sub(whole, before), per_block)
                with cgutils.for_range_slice(builder, low, high, index(step)) as (group, _):
                    add(base, ahead, block, group, None)
            if pack > step:
                odd = builder.icmp_signed("!=", builder.mul(whole, index(pack)), end)
                with builder.if_then(odd):
                    base = pages.at(values, final_block, builder.add(final_block, one), 0)
                    group = builder.sub(whole, builder.mul(final_block, index(per_block)))
                    add(base, None, final_block, group, ir.Constant(I32, 0xFFFF))
            tile.store([builder.gep(each, [start]) for each in out_rows])

        with cgutils.for_range(builder, num_heads) as heads:
            for piece in values_of.pieces():
                emit_piece = partial(emit_tile, head=heads.index, piece=piece)
                _for_each_tile(builder, rows, piece.chunks, 1, emit_piece)

    return routine_body(args, (paired, head_dim, block_size, code), emit)


def _for_each_tile(
    builder: Any, rows: Any, piece: Chunks, num_blocks: int, emit: Callable[..., None]
) -> None:
    """Cut the rows of a head, of the columns of a piece in each of some blocks, into tiles.

    `emit` gets a tile's rows, the first of them, its first column and its columns from there on.
    """
    columns, size = vectors(piece.lanes), sum(piece.lanes)
    most = most_rows(len(piece.lanes) * num_blocks)
    with cgutils.for_range(builder, index(piece.number)) as loop:
        start = builder.add(index(piece.column), builder.mul(loop.index, index(size)))
        for_each_tile(builder, rows, most, partial(emit, start=start, columns=columns))


def _rows(builder: Any, address: Any, stride: Any, first: Any, count: int) -> list[Any]:
    """Pointers to rows from number `first` on."""
    start = builder.gep(pointer(builder, address), [builder.mul(first, stride)])
    return row_pointers(builder, start, stride, count)


def _bounded(builder: Any, value: Any, most: int) -> Any:
    """The value, at least 0 and at most `most`."""
    for comparison, bound in (("<", 0), (">", most)):
        beyond = builder.icmp_signed(comparison, value, index(bound))
        value = builder.select(beyond, index(bound), value)
    return value
