"""The levels nearest to a chunk of numbers, in registers."""

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
    floats,
    index,
    load_vector,
    spread,
    store_vector,
)
from pagoda.kernels.vector_code import CHUNK


@emitted
def nearest_levels(
    typing: Any, x: Any, factor: Any, levels: Any, bounds: Any, first: Any, codes: Any, found: Any
) -> Any:
    """codes and found, [CHUNK] float32: how many bounds lie below x · factor, and that level.

    x: [CHUNK] float32. levels, int8, and bounds, float32: tables whose entries of this width begin
    at `first`, which is the number of levels too. What is no number gets the lowest level.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, times, level_table, bound_table, begin, code_target, level_target = args
        as_floats = (source, bound_table, code_target, level_target)
        source, bound_at, code_at, level_at = (
            builder.inttoptr(each, F32.as_pointer()) for each in as_floats
        )
        level_bytes = builder.inttoptr(level_table, BYTE.as_pointer())

        def level(place: Any) -> Any:
            wide = builder.sext(builder.load(builder.gep(level_bytes, [place])), I32)
            return spread(builder, builder.sitofp(wide, F32), CHUNK)

        values = builder.fmul(
            load_vector(builder, source, floats(CHUNK)), spread(builder, times, CHUNK)
        )
        counts = ir.VectorType(I32, CHUNK)
        count_cell = cgutils.alloca_once_value(builder, constant(counts, 0))
        builder.store(constant(counts, 0), count_cell)
        level_cell = cgutils.alloca_once(builder, floats(CHUNK))
        builder.store(level(begin), level_cell)
        with cgutils.for_range(builder, builder.sub(begin, index(1))) as loop:
            place = builder.add(begin, loop.index)
            bound = spread(builder, builder.load(builder.gep(bound_at, [place])), CHUNK)
            above = builder.fcmp_ordered(">", values, bound)
            more = builder.sub(builder.load(count_cell), builder.sext(above, counts))
            builder.store(more, count_cell)
            next_level = level(builder.add(place, index(1)))
            builder.store(builder.select(above, next_level, builder.load(level_cell)), level_cell)
        store_vector(builder, builder.sitofp(builder.load(count_cell), floats(CHUNK)), code_at)
        store_vector(builder, builder.load(level_cell), level_at)
        return context.get_dummy_value()

    size = types.intp
    return types.void(size, types.float32, *[size] * 5), emit
