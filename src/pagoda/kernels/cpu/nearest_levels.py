"""The levels nearest to the numbers of a vector, chunk by chunk in registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from pagoda.kernels.cpu.number import constant, emitted
from pagoda.kernels.cpu.vector import (
    BYTE,
    F32,
    I32,
    LANES,
    UNIT,
    floats,
    index,
    instruction,
    load_vector,
    spread,
    store_vector,
)
from pagoda.kernels.vector_code import CHUNK, VectorCode

_COUNTS = ir.VectorType(I32, CHUNK)


@emitted
def nearest_levels(
    typing: Any, x: Any, memory: Any, offset: Any, factor: Any, levels: Any, bounds: Any, code: Any
) -> Any:
    """memory: [2, head_size] float32: how many bounds lie below (x - offset) · factor, and the
    levels of these.

    x: [head_size] float32. levels, int8, and bounds, float32: tables whose entries for b bits begin
    at 2 ** b. code: of a `VectorCode`, a constant. What is no number gets the lowest level.
    """
    widths = VectorCode.of_text(code.literal_value).widths
    size = types.intp

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, codes = (builder.inttoptr(each, F32.as_pointer()) for each in args[:2])
        found = builder.gep(codes, [index(CHUNK * len(widths))])
        taken_away, times = (spread(builder, each, CHUNK) for each in args[2:4])
        level_table = builder.inttoptr(args[4], BYTE.as_pointer())
        bound_table = builder.inttoptr(args[5], F32.as_pointer())
        for chunk, width in enumerate(widths):
            place = [index(chunk * CHUNK)]
            read = load_vector(builder, builder.gep(source, place), floats(CHUNK))
            values = builder.fmul(builder.fsub(read, taken_away), times)
            search = Search(builder, level_table, bound_table, 2**width, 2**width)
            below, level = search.nearest(values)
            store_vector(builder, builder.sitofp(below, floats(CHUNK)), builder.gep(codes, place))
            store_vector(builder, level, builder.gep(found, place))
        return context.get_dummy_value()

    float32 = types.float32
    return types.void(size, size, float32, float32, size, size, code), emit


_HALVES = UNIT.table_lanes == LANES


class Search:
    """In some levels that lie one after the other, a power of two of them."""

    def __init__(self, builder: Any, levels: Any, bounds: Any, first: int, count: int) -> None:
        """Pointers to the tables."""
        self._builder, self._count = builder, count
        self._levels = builder.gep(levels, [index(first)])
        self._bounds = builder.gep(bounds, [index(first)])

    def nearest(self, values: Any) -> tuple[Any, Any]:
        """How many bounds lie below each value, int32, and the levels of these: [16]."""
        return self.by_halves(values) if _HALVES else self.one_by_one(values)

    def one_by_one(self, values: Any) -> tuple[Any, Any]:
        """Bounds below each value, int32, and the level there, float32: all are compared."""
        builder = self._builder
        count_cell = cgutils.alloca_once_value(builder, constant(_COUNTS, 0))
        level_cell = cgutils.alloca_once(builder, floats(CHUNK))
        builder.store(self._level(index(0)), level_cell)
        with cgutils.for_range(builder, index(self._count - 1)) as loop:
            bound = builder.load(builder.gep(self._bounds, [loop.index]))
            above = builder.fcmp_ordered(">", values, spread(builder, bound, CHUNK))
            more = builder.sub(builder.load(count_cell), builder.sext(above, _COUNTS))
            builder.store(more, count_cell)
            next_level = self._level(builder.add(loop.index, index(1)))
            builder.store(builder.select(above, next_level, builder.load(level_cell)), level_cell)
        return builder.load(count_cell), builder.load(level_cell)

    def by_halves(self, values: Any) -> tuple[Any, Any]:
        """The same, the bounds that are left halved in every step."""
        builder = self._builder
        bounds = [
            load_vector(builder, builder.gep(self._bounds, [index(part)]), floats())
            for part in range(0, self._count, LANES)
        ]
        below, step = constant(_COUNTS, 0), self._count // 2
        while step:
            place = builder.add(below, constant(_COUNTS, step - 1))
            above = builder.fcmp_ordered(">", values, self._entries(bounds, place))
            further = builder.add(below, constant(_COUNTS, step))
            below, step = builder.select(above, further, below), step // 2
        kept = ir.VectorType(BYTE, LANES)
        levels = []
        for part in range(0, self._count, LANES):
            read = load_vector(builder, builder.gep(self._levels, [index(part)]), kept)
            levels.append(builder.sitofp(read, floats()))
        return below, self._entries(levels, below)

    def _level(self, place: Any) -> Any:
        builder = self._builder
        level = builder.sitofp(builder.load(builder.gep(self._levels, [place])), F32)
        return spread(builder, level, CHUNK)

    def _entries(self, tables: list[Any], places: Any) -> Any:
        """Of one, two or four vectors: entry by entry, by the lowest bits of each place."""
        builder = self._builder
        if len(tables) == 1:
            return instruction(builder, "llvm.x86.avx512.permvar.sf.512", [tables[0], places])
        found = [
            instruction(builder, "llvm.x86.avx512.vpermi2var.ps.512", [low, places, high])
            for low, high in zip(tables[::2], tables[1::2], strict=True)
        ]
        if len(found) == 1:
            return found[0]
        chosen = builder.and_(places, constant(_COUNTS, 2 * LANES))
        is_high = builder.icmp_signed("!=", chosen, constant(_COUNTS, 0))
        return builder.select(is_high, found[1], found[0])
