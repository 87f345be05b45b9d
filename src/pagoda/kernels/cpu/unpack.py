"""Coded keys and values of a head as plain or whole numbers, where too many rows meet them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from numba.core import cgutils

from pagoda.kernels.cpu.choose_reader import key_reader, value_reader
from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.page_readers import Pages
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import Columns, chunks, vector_lanes, vectors
from pagoda.kernels.cpu.vector import after, index, pointer, store_vector
from pagoda.kernels.cpu.whole_form import key_groups, whole_form


@cache
def unpack_keys_routine(
    paired: bool, head_dim: int, block_size: int, code: str, wide: int | None
) -> Any:  # fmt: skip
    """For codes, by their text, and numbers as `page_readers` reads plain ones, or `whole_keys`."""

    def unpack_keys(
        out: int, codes: int, block_stride: int, table: int, first: int, last: int, levels: int
    ) -> None:
        """out = what codes stand for, block by block.

        The blocks are table[first] … table[last - 1]; table: int32. Block b has the head's codes
        at codes + b · block_stride bytes. levels: the head's table, as `level_tables` says. wide:
        as `PageForm` has it.
        """
        _unpack_keys(
            (out, codes, block_stride, table, first, last, levels),
            paired, head_dim, block_size, code, wide,
        )  # fmt: skip

    return compiled(unpack_keys, 7)


@cache
def unpack_values_routine(paired: bool, head_dim: int, block_size: int, code: str) -> Any:
    """For codes, by their text, and numbers as `page_readers` reads plain ones."""

    def unpack_values(
        out: int, codes: int, block_stride: int, table: int, first: int, last: int, levels: int
    ) -> None:
        """As `unpack_keys`."""
        _unpack_values(
            (out, codes, block_stride, table, first, last, levels),
            paired, head_dim, block_size, code,
        )  # fmt: skip

    return compiled(unpack_values, 7)


@emitted
def _unpack_keys(
    typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any, code: Any, wide: Any
) -> Any:
    shape = (paired, head_dim, block_size, code)
    is_paired, width, size, text = (each.literal_value for each in shape)
    form = whole_form(head_dim, wide)
    depth = key_groups(is_paired, width, form and form.wide)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, codes, block_stride, table, first, last, levels = values
        keys_of = key_reader(text, width, size, is_paired, form)
        keys_of.open(builder, index(0), levels)
        pages = Pages(builder, table, block_stride)
        with cgutils.for_range_slice(builder, first, last, index(1)) as (block, count):
            target = builder.gep(pointer(builder, out), [builder.mul(count, index(depth * size))])

            bases, asked = ([pages.at(codes, block, last, number)] for number in (0, 1))

            def unpack_piece(start: Any, columns: Columns, target: Any) -> None:
                def put(group: Any, read: Sequence[Any]) -> None:
                    line = builder.add(builder.mul(group, index(size)), start)
                    for (column, _), each in zip(columns, read, strict=True):
                        store_vector(builder, each, after(builder, target, line, column))

                keys_of.for_each_group(builder, bases, asked, index(0), start, columns, put)

            for piece in chunks(vector_lanes(size)):
                step = index(sum(piece.lanes))
                with cgutils.for_range(builder, index(piece.number)) as loop:
                    start = builder.add(index(piece.column), builder.mul(loop.index, step))
                    unpack_piece(start, vectors(piece.lanes), target)

    return routine_body(args, (*shape, wide), emit)


@emitted
def _unpack_values(
    typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any, code: Any
) -> Any:
    shape = (paired, head_dim, block_size, code)
    is_paired, width, size, text = (each.literal_value for each in shape)
    per_block = size // (1 + is_paired)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, codes, block_stride, table, first, last, levels = values
        values_of = value_reader(text, width, size, is_paired)
        values_of.open(builder, index(0), levels)
        pages = Pages(builder, table, block_stride)

        def unpack_group(base: Any, ahead: Any, target: Any, group: Any) -> None:
            for piece in values_of.pieces():
                columns = vectors(piece.chunks.lanes)
                step = sum(piece.chunks.lanes)
                with cgutils.for_range(builder, index(piece.chunks.number)) as loop:
                    start = builder.add(
                        index(piece.chunks.column), builder.mul(loop.index, index(step))
                    )
                    read = values_of.groups(
                        builder, base, ahead, index(0), group, start, piece, columns
                    )
                    for before, groups in read:
                        chosen = columns[before : before + len(groups[0])]
                        for number, each in enumerate(groups):
                            line = builder.mul(builder.add(group, index(number)), index(width))
                            for (column, _), found in zip(chosen, each, strict=True):
                                place = builder.add(builder.add(line, start), index(column))
                                store_vector(builder, found, builder.gep(target, [place]))

        with cgutils.for_range_slice(builder, first, last, index(1)) as (block, count):
            base, ahead = (pages.at(codes, block, last, number) for number in (0, 1))
            place = builder.mul(count, index(per_block * width))
            target = builder.gep(pointer(builder, out), [place])
            step = values_of.at_once
            with cgutils.for_range(builder, index(per_block // step)) as loop:
                unpack_group(base, ahead, target, builder.mul(loop.index, index(step)))

    return routine_body(args, shape, emit)
