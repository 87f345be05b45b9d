"""Coded keys and values of a head as plain numbers, where too many rows meet them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from numba.core import cgutils

from pagoda.kernels.cpu.choose_reader import key_reader, value_reader
from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.page_readers import Pages
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import vector_lanes, vectors
from pagoda.kernels.cpu.vector import index, pointer, store_vector

Emit = Callable[[Any, Sequence[Any]], None]
"""Writes a routine's instructions, from its arguments."""


@cache
def unpack_routine(paired: bool, head_dim: int, block_size: int, code: str, side: str) -> Any:
    """For codes of a side, "keys" or "values", by their text, and numbers as products take them."""

    def unpack(
        out: int, codes: int, block_stride: int, table: int, first: int, last: int, levels: int
    ) -> None:
        """out = what codes stand for, block by block as `page_readers` reads plain numbers.

        The blocks are table[first] … table[last - 1]; table: int32. Block b has the head's codes
        at codes + b · block_stride bytes. levels: the head's table, as `level_tables` says.
        """
        _unpack(
            (out, codes, block_stride, table, first, last, levels),
            paired, head_dim, block_size, code, side,
        )  # fmt: skip

    return compiled(unpack, 7)


@emitted
def _unpack(
    typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any, code: Any, side: Any
) -> Any:
    make = {"keys": _unpack_keys, "values": _unpack_values}[side.literal_value]
    shape = (paired, head_dim, block_size, code)
    emit = make(*(each.literal_value for each in shape))
    return routine_body(args, (*shape, side), emit)


def _unpack_keys(paired: bool, head_dim: int, block_size: int, code: str) -> Emit:
    depth = head_dim // (1 + paired)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, codes, block_stride, table, first, last, levels = values
        keys_of = key_reader(code, head_dim, block_size, paired)
        keys_of.open(builder, index(0), levels)
        pages, columns = Pages(builder, table, block_stride), vectors(vector_lanes(block_size))
        with cgutils.for_range_slice(builder, first, last, index(1)) as (block, count):
            target = builder.gep(
                pointer(builder, out), [builder.mul(count, index(depth * block_size))]
            )

            def put(group: Any, read: Sequence[Any], target: Any = target) -> None:
                line = builder.mul(group, index(block_size))
                for (column, _), each in zip(columns, read, strict=True):
                    place = builder.add(line, index(column))
                    store_vector(builder, each, builder.gep(target, [place]))

            bases, asked = ([pages.at(codes, block, last, number)] for number in (0, 1))
            keys_of.for_each_group(builder, bases, asked, index(0), index(0), columns, put)

    return emit


def _unpack_values(paired: bool, head_dim: int, block_size: int, code: str) -> Emit:
    per_block = block_size // (1 + paired)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, codes, block_stride, table, first, last, levels = values
        values_of = value_reader(code, head_dim, block_size, paired)
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
                            line = builder.mul(builder.add(group, index(number)), index(head_dim))
                            for (column, _), found in zip(chosen, each, strict=True):
                                place = builder.add(builder.add(line, start), index(column))
                                store_vector(builder, found, builder.gep(target, [place]))

        with cgutils.for_range_slice(builder, first, last, index(1)) as (block, count):
            base, ahead = (pages.at(codes, block, last, number) for number in (0, 1))
            place = builder.mul(count, index(per_block * head_dim))
            target = builder.gep(pointer(builder, out), [place])
            step = values_of.at_once
            with cgutils.for_range(builder, index(per_block // step)) as loop:
                unpack_group(base, ahead, target, builder.mul(loop.index, index(step)))

    return emit
