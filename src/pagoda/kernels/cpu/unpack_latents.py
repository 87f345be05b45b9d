"""Coded latents as plain numbers: what products read, and values are turned out of.

A block becomes what `page_readers` reads as plain keys, [width / group, block_size, group], of one
float32 or two bfloat16 a group: of a latent's numbers the levels times the scale of theirs, rounded
once, and the shared key as it is stored. It depends on the block alone, and so do its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.choose_reader import key_reader
from pagoda.kernels.cpu.number import constant, emitted, rounded
from pagoda.kernels.cpu.page_readers import Pages
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import Columns, vector_lanes, vectors
from pagoda.kernels.cpu.vector import (
    I32,
    LANES,
    UNIT,
    after,
    floats,
    halves,
    index,
    lane_numbers,
    load_vector,
    pointer,
    prefetch,
    rounded_pairs,
    store_vector,
)
from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.vector_code import VectorCode

_HALF = ir.IntType(16)


@cache
def unpack_latents_routine(code: str, paired: bool, block_size: int) -> Any:
    """For codes by their text, and numbers as products take them: pairs of bfloat16, or float32."""

    def unpack_latents(
        out: int, blocks: int, block_stride: int, table: int, first: int, last: int
    ) -> None:
        """out = what the blocks table[first] … table[last - 1] hold, one after the other.

        table: int32. Block b is at blocks + b · block_stride bytes.
        """
        _unpack((out, blocks, block_stride, table, first, last), code, paired, block_size)

    return compiled(unpack_latents, 6)


@emitted
def _unpack(typing: Any, args: Any, code: Any, paired: Any, block_size: Any) -> Any:
    form = LatentCode.of_text(code.literal_value)
    unpacker = _Unpacker(form, paired.literal_value, block_size.literal_value)
    return routine_body(args, (code, paired, block_size), unpacker.emit)


class _Unpacker:
    """Writes the routine's instructions."""

    def __init__(self, code: LatentCode, paired: bool, block_size: int) -> None:
        self._code, self._paired, self._size = code, paired, block_size
        self._pack = 1 + paired
        self._columns: Columns = vectors(vector_lanes(block_size))

    def emit(self, builder: Any, values: Sequence[Any]) -> None:
        """See `unpack_latents`."""
        out, blocks, stride, table, first, last = values
        code, pages = self._code, Pages(builder, table, stride)
        whole, last_group = code.num_groups, code.num_groups - 1
        if code.whole != code.last:
            whole -= 1
        with cgutils.for_range_slice(builder, first, last, index(1)) as (block, count):
            source, ahead = (pages.at(blocks, block, last, number) for number in (0, 1))
            size = code.width * self._size // self._pack
            target = builder.gep(pointer(builder, out), [builder.mul(count, index(size))])
            with cgutils.for_range(builder, index(whole)) as loop:
                self._emit_group(builder, source, ahead, target, loop.index, code.whole)
            if whole < code.num_groups:
                self._emit_group(builder, source, ahead, target, index(last_group), code.last)
            self._emit_shared(builder, source, ahead, target)

    def _emit_group(
        self, builder: Any, source: Any, ahead: Any, target: Any, number: Any, group: VectorCode
    ) -> None:
        """Numbers of one group, of all tokens of a block."""
        size, columns = self._size, self._columns
        begin = builder.mul(number, index(self._code.group_size * size // 4))
        lines = builder.mul(number, index(self._code.group_size // self._pack))
        scales = builder.add(
            builder.mul(number, index(size)), index(self._code.scales_start * size // 4)
        )
        factors = [
            load_vector(builder, after(builder, source, scales, column), floats(lanes))
            for column, lanes in columns
        ]
        prefetch(builder, builder.gep(ahead, [scales]))

        def put(line: Any, read: Sequence[Any]) -> None:
            place = builder.mul(builder.add(lines, line), index(size))
            for (column, _), levels, factor in zip(columns, read, factors, strict=True):
                scaled = _scaled(builder, levels, factor, self._paired)
                store_vector(builder, scaled, after(builder, target, place, column))

        keys = key_reader(group.text, group.head_size, size, self._paired)
        keys.open(builder, index(0), index(0))
        bases, asked = ([builder.gep(each, [begin])] for each in (source, ahead))
        keys.for_each_group(builder, bases, asked, index(0), index(0), columns, put)

    def _emit_shared(self, builder: Any, source: Any, ahead: Any, target: Any) -> None:
        """Pairs of the shared key."""
        code, size = self._code, self._size
        with cgutils.for_range(builder, index(code.rope_dim // 2)) as loop:
            line = builder.mul(loop.index, index(size))
            begin = builder.add(line, index(code.shared_start * size // 4))
            place = builder.add(
                builder.mul(line, index(2 // self._pack)), index(code.rank // self._pack * size)
            )
            prefetch(builder, builder.gep(ahead, [begin]))
            for column, lanes in self._columns:
                pairs = load_vector(
                    builder, after(builder, source, begin, column), ir.VectorType(I32, lanes)
                )
                found = [pairs] if self._paired else [half(builder, pairs) for half in halves(True)]
                for number, each in enumerate(found):
                    at = after(builder, target, place, number * size + column)
                    store_vector(builder, each, at)


def _scaled(builder: Any, levels: Any, factor: Any, paired: bool) -> Any:
    """Groups of levels times the scales of their tokens."""
    parts = [builder.fmul(half(builder, levels), factor) for half in halves(paired)]
    if not paired:
        return parts[0]
    lanes = levels.type.count
    if UNIT.pairs and lanes == LANES:
        pairs = builder.bitcast(rounded_pairs(builder, *parts), ir.VectorType(_HALF, 2 * lanes))
        order = [lane // 2 + lane % 2 * lanes for lane in range(2 * lanes)]
        pairs = builder.shuffle_vector(pairs, pairs, lane_numbers(order))
        return builder.bitcast(pairs, levels.type)
    low, high = (builder.zext(rounded(builder, part), levels.type) for part in parts)
    return builder.or_(low, builder.shl(high, constant(levels.type, 16)))
