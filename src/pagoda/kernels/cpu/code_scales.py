"""Scales and offsets of coded keys and values, where they meet scores and weights.

With K = level · scale + offset, q · K = (q · levels) · scale + Σ q · offset, and likewise
Σ w · V = Σ (w · scale) · levels + Σ w · offset. So the products take levels alone, and `softmax`
takes what is gathered here, token by token, and each query's sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.half import from_half
from pagoda.kernels.cpu.number import constant, emitted, number_at, put_number
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.softmax import KEY_OFFSET, KEY_SCALE, SCALE_ROWS, VALUE_OFFSET, VALUE_SCALE
from pagoda.kernels.cpu.tile import vector_lanes, vectors
from pagoda.kernels.cpu.ufloat8 import from_ufloat8
from pagoda.kernels.cpu.vector import (
    BYTE,
    F32,
    I32,
    combine_lanes,
    floats,
    halves,
    index,
    load_vector,
    store_vector,
)
from pagoda.kernels.vector_code import SCALE_BYTES, VectorCode


def scales_of(form: PageForm) -> tuple[int, ...]:
    """Which of `softmax`'s rows of scales there are."""
    key, value = form.key, form.value
    is_there = (
        (KEY_SCALE, key is not None and key.scale),
        (KEY_OFFSET, key is not None and key.has_offset),
        (VALUE_SCALE, value is not None and value.scale),
        (VALUE_OFFSET, value is not None and value.has_offset),
    )
    return tuple(row for row, there in is_there if there)


@cache
def gather_scales_routine(block_size: int, key: str, value: str) -> Any:
    """For codes by their texts."""

    def gather_scales(
        out: int, width: int, keys: int, values: int, key_bytes: int, value_bytes: int,
        block_stride: int, table: int, first: int, last: int, num_heads: int,
    ) -> None:  # fmt: skip
        """out[head, row, token] = scales and offsets of the blocks table[first] … table[last - 1].

        out: [num_heads, `SCALE_ROWS`, width] float32. table: int32. Block b has the first head's
        scales, and then its offsets, of keys at keys + b · block_stride bytes, those of the next
        head `key_bytes` on; and of values likewise.
        """
        _gather_scales(
            (out, width, keys, values, key_bytes, value_bytes, block_stride, table, first, last,
             num_heads),
            block_size, key, value,
        )  # fmt: skip

    return compiled(gather_scales, 11)


@emitted
def _gather_scales(typing: Any, args: Any, block_size: Any, key: Any, value: Any) -> Any:
    size = block_size.literal_value
    sides = [
        (VectorCode.of_text(text.literal_value), rows)
        for text, rows in ((key, (KEY_SCALE, KEY_OFFSET)), (value, (VALUE_SCALE, VALUE_OFFSET)))
    ]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, width, *places, block_stride, table, first, last, num_heads = values
        target = builder.inttoptr(out, F32.as_pointer())
        ids = builder.inttoptr(table, I32.as_pointer())

        def gather(code: VectorCode, row: int, source: Any, head: Any, column: Any) -> None:
            """source: pointer to the first token's scale, or offset."""
            begin = builder.add(builder.mul(head, index(SCALE_ROWS)), index(row))
            begin = builder.add(builder.mul(begin, width), column)
            for start, lanes in vectors(vector_lanes(size)):
                found = _read(builder, source, str(code.scale), start, lanes)
                place = builder.add(begin, index(start))
                store_vector(builder, found, builder.gep(target, [place]))

        with cgutils.for_range_slice(builder, first, last, index(1)) as (number, count):
            block = builder.sext(builder.load(builder.gep(ids, [number])), index(0).type)
            before = builder.mul(block, block_stride)
            column = builder.mul(count, index(size))
            with cgutils.for_range(builder, num_heads) as heads:
                for side, (code, rows) in enumerate(sides):
                    if code.scale is None:
                        continue
                    start = builder.add(before, builder.mul(heads.index, places[2 + side]))
                    source = builder.inttoptr(builder.add(places[side], start), BYTE.as_pointer())
                    for part, row in enumerate(rows[: 1 + code.has_offset]):
                        offset = index(part * size * SCALE_BYTES[code.scale])
                        gather(code, row, builder.gep(source, [offset]), heads.index, column)

    return routine_body(args, (block_size, key, value), emit)


@cache
def sum_rows_routine(paired: bool, head_dim: int) -> Any:
    """For rows of bfloat16, which come in pairs, or float32."""

    def sum_rows(sums: int, x: int, rows: int) -> None:
        """sums[row] = Σ x[row]: [rows] float32 of [rows, head_dim]."""
        _sum_rows((sums, x, rows), paired, head_dim)

    return compiled(sum_rows, 3)


@emitted
def _sum_rows(typing: Any, args: Any, paired: Any, head_dim: Any) -> Any:
    is_paired = paired.literal_value
    depth = head_dim.literal_value // (1 + is_paired)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        sums, x, rows = values
        target = builder.inttoptr(sums, F32.as_pointer())
        source = builder.inttoptr(x, I32.as_pointer())
        with cgutils.for_range(builder, rows) as each:
            row = builder.gep(source, [builder.mul(each.index, index(depth))])
            total = _sum_of(builder, row, depth, is_paired)
            builder.store(total, builder.gep(target, [each.index]))

    return routine_body(args, (paired, head_dim), emit)


@cache
def add_offsets_routine() -> Any:
    """What values' offsets come to, added to their products."""

    def add_offsets(added: int, offsets: int, rows: int, head_dim: int) -> None:
        """added: [rows, head_dim] float32, changed; offsets: [rows] float32."""
        for row in range(rows):
            offset, start = number_at(offsets, row, False), added + row * head_dim * 4
            for d in range(head_dim):
                put_number(start, d, number_at(start, d, False) + offset, False)

    return compiled(add_offsets, 4)


def _sum_of(builder: Any, query: Any, depth: int, paired: bool) -> Any:
    """Σ of a query's numbers, which lie in `depth` groups."""
    total = cgutils.alloca_once_value(builder, constant(F32, 0.0))
    for start, lanes in vectors(vector_lanes(depth)):
        groups = load_vector(builder, builder.gep(query, [index(start)]), ir.VectorType(I32, lanes))
        for half in halves(paired):
            part = combine_lanes(builder, half(builder, groups), builder.fadd)
            builder.store(builder.fadd(builder.load(total), part), total)
    return builder.load(total)


def _read(builder: Any, kept: Any, dtype: str, first: int, lanes: int) -> Any:
    """Numbers from number `first` on, as float32."""
    source = builder.gep(kept, [index(first * SCALE_BYTES[dtype])])
    if dtype == "float32":
        return load_vector(builder, source, floats(lanes))
    if dtype == "ufloat8":
        return from_ufloat8(builder, load_vector(builder, source, ir.VectorType(BYTE, lanes)))
    return from_half(builder, load_vector(builder, source, ir.VectorType(ir.IntType(16), lanes)))
