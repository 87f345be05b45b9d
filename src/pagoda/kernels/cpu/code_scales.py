"""Scales and offsets of coded keys and values, where they meet scores and weights.

With K = level · scale + offset, q · K = (q · levels) · scale + Σ q · offset, and likewise
Σ w · V = Σ (w · scale) · levels + Σ w · offset. So the products take levels alone, and each scale
is read once a token. What lies in a block after the last token may be anything, not a number too:
scores there are masked afterwards, and weights there are 0 and stay so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.half import from_half
from pagoda.kernels.cpu.number import constant, emitted, fused, number_at, put_number
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import vector_lanes, vectors
from pagoda.kernels.cpu.ufloat8 import from_ufloat8
from pagoda.kernels.cpu.vector import (
    BYTE,
    F32,
    I32,
    combine_lanes,
    floats,
    index,
    load_vector,
    spread,
    store_rounded,
    store_vector,
)
from pagoda.kernels.vector_code import SCALE_BYTES


@cache
def scale_scores_routine(paired: bool, head_dim: int, block_size: int, scale: str) -> Any:
    """For queries in bfloat16, which come in pairs, or float32; scale: as `_dtype_of` reads it."""

    def scale_scores(
        scores: int, width: int, x: int, x_stride: int, sums: int, scales: int, head_bytes: int,
        block_stride: int, table: int, first: int, last: int, origin: int, rows: int,
        num_heads: int,
    ) -> None:  # fmt: skip
        """scores[head, row, token - origin] · scale + Σ x[head, row] · offset, in place.

        Of all tokens of the blocks table[first] … table[last - 1]; table: int32. scores, x: as
        `score_tokens` has them. sums: [num_heads, rows] float32, written where there are offsets.
        Block b has the first head's scales at scales + b · block_stride bytes, those of the next
        one `head_bytes` on.
        """
        _scale_scores(
            (scores, width, x, x_stride, sums, scales, head_bytes, block_stride, table, first,
             last, origin, rows, num_heads),
            paired, head_dim, block_size, scale,
        )  # fmt: skip

    return compiled(scale_scores, 14)


@emitted
def _scale_scores(
    typing: Any, args: Any, paired: Any, head_dim: Any, block_size: Any, scale: Any
) -> Any:
    dtype, has_offset = _dtype_of(scale.literal_value)
    size = block_size.literal_value

    def emit(builder: Any, values: Sequence[Any]) -> None:
        scores, width, x, x_stride, sums, scales, head_bytes, block_stride = values[:8]
        table, first, last, origin, rows, num_heads = values[8:]
        walk = _Walk(builder, scales, head_bytes, block_stride, table, first, last, origin, size)
        depth = head_dim.literal_value // (2 if paired.literal_value else 1)

        def scale_row(row: Any, place: Any, factor: Any, offset: Any) -> None:
            target = builder.gep(_row(builder, scores, row, width, F32), [place])
            found = load_vector(builder, target, factor.type)
            if offset is None:
                found = builder.fmul(found, factor)
            else:
                total = builder.load(_row(builder, sums, row, index(1), F32))
                added = builder.fmul(offset, spread(builder, total, factor.type.count))
                found = fused(builder, found, factor, added)
            store_vector(builder, found, target)

        with cgutils.for_range(builder, num_heads) as heads:
            if has_offset:
                with _each_row(builder, heads.index, rows) as row:
                    query = _row(builder, x, row, x_stride, I32)
                    total = _sum_of(builder, query, depth, paired.literal_value)
                    builder.store(total, _row(builder, sums, row, index(1), F32))
            with walk.blocks(heads.index) as (kept, column):
                for start, lanes in vectors(vector_lanes(size)):
                    place = builder.add(column, index(start))
                    factor, offset = _read(builder, kept, dtype, start, lanes), None
                    if has_offset:
                        offset = _read(builder, kept, dtype, size + start, lanes)
                    with _each_row(builder, heads.index, rows) as row:
                        scale_row(row, place, factor, offset)

    return routine_body(args, (paired, head_dim, block_size, scale), emit)


@cache
def scale_weights_routine(paired: bool, block_size: int, scale: str) -> Any:
    """For products that take bfloat16, which come in pairs, or float32."""

    def scale_weights(
        weights: int, width: int, offsets: int, scales: int, head_bytes: int, block_stride: int,
        table: int, first: int, last: int, origin: int, rows: int, num_heads: int,
    ) -> None:  # fmt: skip
        """weights[head, row, token - origin] · scale, in place, and offsets[row] = Σ w · offset.

        weights: [rows, width] float32; each row becomes numbers of the routine's dtype, which begin
        where it begins. offsets: [rows] float32, written where there are any. The others: as
        `scale_scores` takes them.
        """
        _scale_weights(
            (weights, width, offsets, scales, head_bytes, block_stride, table, first, last, origin,
             rows, num_heads),
            paired, block_size, scale,
        )  # fmt: skip

    return compiled(scale_weights, 12)


@emitted
def _scale_weights(typing: Any, args: Any, paired: Any, block_size: Any, scale: Any) -> Any:
    dtype, has_offset = _dtype_of(scale.literal_value)
    size, is_paired = block_size.literal_value, paired.literal_value
    stored = ir.IntType(16) if is_paired else F32

    def emit(builder: Any, values: Sequence[Any]) -> None:
        weights, width, offsets, scales, head_bytes, block_stride = values[:6]
        table, first, last, origin, rows, num_heads = values[6:]
        walk = _Walk(builder, scales, head_bytes, block_stride, table, first, last, origin, size)

        def scale_row(row: Any, place: Any, factor: Any, offset: Any) -> None:
            source = _row(builder, weights, row, width, F32)
            weight = load_vector(builder, builder.gep(source, [place]), factor.type)
            nothing = constant(weight.type, 0.0)
            counts = builder.fcmp_ordered("!=", weight, nothing)
            target = builder.gep(builder.bitcast(source, stored.as_pointer()), [place])
            scaled = builder.select(counts, builder.fmul(weight, factor), nothing)
            store_rounded(builder, is_paired, scaled, target)
            if offset is not None:
                added = builder.select(counts, builder.fmul(weight, offset), nothing)
                total = _row(builder, offsets, row, index(1), F32)
                more = combine_lanes(builder, added, builder.fadd)
                builder.store(builder.fadd(builder.load(total), more), total)

        with cgutils.for_range(builder, num_heads) as heads:
            if has_offset:
                with _each_row(builder, heads.index, rows) as row:
                    builder.store(constant(F32, 0.0), _row(builder, offsets, row, index(1), F32))
            with walk.blocks(heads.index) as (kept, column):
                for start, lanes in vectors(vector_lanes(size)):
                    place = builder.add(column, index(start))
                    factor, offset = _read(builder, kept, dtype, start, lanes), None
                    if has_offset:
                        offset = _read(builder, kept, dtype, size + start, lanes)
                    with _each_row(builder, heads.index, rows) as row:
                        scale_row(row, place, factor, offset)

    return routine_body(args, (paired, block_size, scale), emit)


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


class _Walk:
    """The way through the scales of a head, block by block."""

    def __init__(self, builder: Any, *args: Any) -> None:
        self._builder = builder
        self._scales, self._head_bytes, self._block_stride, self._table = args[:4]
        self._first, self._last, self._origin, self._size = args[4:]

    @contextmanager
    def blocks(self, head: Any) -> Iterator[tuple[Any, Any]]:
        """A loop: pointer to the head's scales in a block, and the column of its first token."""
        builder = self._builder
        base = builder.add(self._scales, builder.mul(head, self._head_bytes))
        ids = builder.inttoptr(self._table, I32.as_pointer())
        with cgutils.for_range_slice(builder, self._first, self._last, index(1)) as (number, _):
            block = builder.sext(builder.load(builder.gep(ids, [number])), index(0).type)
            address = builder.add(base, builder.mul(block, self._block_stride))
            column = builder.sub(builder.mul(number, index(self._size)), self._origin)
            yield builder.inttoptr(address, BYTE.as_pointer()), column


@contextmanager
def _each_row(builder: Any, head: Any, rows: Any) -> Iterator[Any]:
    """A loop over the rows of a head: the row's number among those of all."""
    with cgutils.for_range(builder, rows) as each:
        yield builder.add(builder.mul(head, rows), each.index)


def _row(builder: Any, address: Any, row: Any, stride: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [builder.mul(row, stride)])


def _sum_of(builder: Any, query: Any, depth: int, paired: bool) -> Any:
    """Σ of a query's numbers, which lie in `depth` groups."""
    total = cgutils.alloca_once_value(builder, constant(F32, 0.0))
    builder.store(constant(F32, 0.0), total)
    for start, lanes in vectors(vector_lanes(depth)):
        groups = load_vector(builder, builder.gep(query, [index(start)]), ir.VectorType(I32, lanes))
        for half in _halves(builder, groups, paired):
            part = combine_lanes(builder, half, builder.fadd)
            builder.store(builder.fadd(builder.load(total), part), total)
    return builder.load(total)


def _halves(builder: Any, groups: Any, paired: bool) -> list[Any]:
    """The numbers in groups, float32."""
    kind = floats(groups.type.count)
    if not paired:
        return [builder.bitcast(groups, kind)]
    low = builder.shl(groups, constant(groups.type, 16))
    high = builder.and_(groups, constant(groups.type, 0xFFFF0000))
    return [builder.bitcast(low, kind), builder.bitcast(high, kind)]


def _read(builder: Any, kept: Any, dtype: str, first: int, lanes: int) -> Any:
    """Numbers from number `first` on, as float32."""
    source = builder.gep(kept, [index(first * SCALE_BYTES[dtype])])
    if dtype == "float32":
        return load_vector(builder, source, floats(lanes))
    if dtype == "ufloat8":
        return from_ufloat8(builder, load_vector(builder, source, ir.VectorType(BYTE, lanes)))
    return from_half(builder, load_vector(builder, source, ir.VectorType(ir.IntType(16), lanes)))


def _dtype_of(scale: str) -> tuple[str, bool]:
    """The dtype, and whether there is an offset, of `float16+offset` and the like."""
    dtype, _, offset = scale.partition("+")
    return dtype, bool(offset)
