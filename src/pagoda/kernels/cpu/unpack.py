"""Coded keys and values of a head as plain numbers, where too many rows meet them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from numba.core import cgutils

from pagoda.kernels.cpu.choose_reader import key_reader, value_reader
from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.page_readers import Pages
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import vector_lanes, vectors
from pagoda.kernels.cpu.vector import index, pointer, store_vector

_NUM_ARGS = 7


@cache
def unpack_keys_routine(paired: bool, head_dim: int, block_size: int, code: str) -> Any:
    """For codes by their text, and numbers as products take them."""

    def unpack(
        out: int, codes: int, block_stride: int, table: int, first: int, last: int, levels: int
    ) -> None:
        """out = what keys stand for, block by block as `page_readers.PlainKeys` reads them.

        The blocks are table[first] … table[last - 1]; table: int32. Block b has the head's codes
        at codes + b · block_stride bytes. levels: the head's table, as `level_tables` says.
        """
        _unpack_keys(
            (out, codes, block_stride, table, first, last, levels),
            paired, head_dim, block_size, code,
        )  # fmt: skip

    return compiled(unpack, _NUM_ARGS)


@cache
def unpack_values_routine(paired: bool, head_dim: int, block_size: int, code: str) -> Any:
    """As `unpack_keys_routine`, of values."""

    def unpack(
        out: int, codes: int, block_stride: int, table: int, first: int, last: int, levels: int
    ) -> None:
        """The same for `page_readers.PlainValues`."""
        _unpack_values(
            (out, codes, block_stride, table, first, last, levels),
            paired, head_dim, block_size, code,
        )  # fmt: skip

    return compiled(unpack, _NUM_ARGS)


@emitted
def _unpack_keys(
    typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any, code: Any
) -> Any:
    is_paired, size = paired.literal_value, block_size.literal_value
    depth = head_dim.literal_value // (1 + is_paired)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, codes, block_stride, table, first, last, levels = values
        keys_of = key_reader(code.literal_value, head_dim.literal_value, size, is_paired)
        keys_of.open(builder, index(0), levels)
        pages, columns = Pages(builder, table, block_stride), vectors(vector_lanes(size))
        with cgutils.for_range_slice(builder, first, last, index(1)) as (block, count):
            target = builder.gep(pointer(builder, out), [builder.mul(count, index(depth * size))])

            def put(group: Any, read: Sequence[Any], target: Any = target) -> None:
                line = builder.mul(group, index(size))
                for (column, _), each in zip(columns, read, strict=True):
                    place = builder.add(line, index(column))
                    store_vector(builder, each, builder.gep(target, [place]))

            bases, asked = ([pages.at(codes, block, last, number)] for number in (0, 1))
            keys_of.for_each_group(builder, bases, asked, index(0), index(0), columns, put)

    return routine_body(args, (paired, head_dim, block_size, code), emit)


@emitted
def _unpack_values(
    typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any, code: Any
) -> Any:
    is_paired, width = paired.literal_value, head_dim.literal_value
    per_block = block_size.literal_value // (1 + is_paired)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, codes, block_stride, table, first, last, levels = values
        values_of = value_reader(code.literal_value, width, block_size.literal_value, is_paired)
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
                    for number, each in enumerate(read):
                        line = builder.mul(builder.add(group, index(number)), index(width))
                        for (column, _), found in zip(columns, each, strict=True):
                            place = builder.add(builder.add(line, start), index(column))
                            store_vector(builder, found, builder.gep(target, [place]))

        with cgutils.for_range_slice(builder, first, last, index(1)) as (block, count):
            base, ahead = (pages.at(codes, block, last, number) for number in (0, 1))
            place = builder.mul(count, index(per_block * width))
            target = builder.gep(pointer(builder, out), [place])
            step = values_of.at_once
            with cgutils.for_range(builder, index(per_block // step)) as loop:
                unpack_group(base, ahead, target, builder.mul(loop.index, index(step)))

    return routine_body(args, (paired, head_dim, block_size, code), emit)
