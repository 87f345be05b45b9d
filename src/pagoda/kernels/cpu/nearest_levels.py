"""The levels nearest to the numbers of a vector, in registers.

Bounds are trees, as `level_tables` lays them out: those that a step may compare with lie side by
side, so a few instructions look up as many as there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    lane_numbers,
    load_vector,
    spread,
    store_vector,
)
from pagoda.kernels.cpu.vector_chunks import chunk_of
from pagoda.kernels.vector_code import CHUNK, VectorCode

_COUNTS = ir.VectorType(I32, CHUNK)
_SIGN = 31
"""Bit of an int32."""

Load = Callable[[Any, int], Any]
"""Gives so many entries of a table from one of them on, float32; one: a number."""


@emitted
def nearest_levels(
    typing: Any, x: Any, memory: Any, offset: Any, factor: Any, levels: Any, bounds: Any, code: Any
) -> Any:
    """memory: [2, head_size] float32: how many bounds lie below (x - offset) · factor, and the
    levels of these.

    x: [head_size] float32. levels, int8, and bounds, float32: tables whose entries for b bits begin
    at 2 ** b, bounds as trees. code: of a `VectorCode`, a constant. What is no number gets the
    lowest or the highest level.
    """
    widths = VectorCode.of_text(code.literal_value).widths
    size = types.intp

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        codes = builder.inttoptr(args[1], F32.as_pointer())
        found = builder.gep(codes, [index(CHUNK * len(widths))])
        taken_away, times = (spread(builder, each, CHUNK) for each in args[2:4])
        places = [[index(chunk * CHUNK)] for chunk in range(len(widths))]
        searches = [search_of(builder, args[4], args[5], width) for width in widths]
        values = [
            builder.fmul(builder.fsub(chunk_of(builder, args[0], chunk), taken_away), times)
            for chunk in range(len(widths))
        ]
        for place, (below, level) in zip(places, nearest(searches, values), strict=True):
            store_vector(builder, builder.sitofp(below, floats(CHUNK)), builder.gep(codes, place))
            store_vector(builder, level, builder.gep(found, place))
        return context.get_dummy_value()

    float32 = types.float32
    return types.void(size, size, float32, float32, size, size, code), emit


def nearest(searches: Sequence[Search], values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Of each search how many bounds lie below its values, int32, and the levels of these: [16].

    Step by step for all of them: each step waits for the one before it.
    """
    below = [constant(_COUNTS, 0)] * len(searches)
    for number in range(max(search.num_steps for search in searches)):
        for i, search in enumerate(searches):
            if number < search.num_steps:
                below[i] = search.step(number, values[i], below[i])
    return [(each, search.levels(each)) for search, each in zip(searches, below, strict=True)]


class Search:
    """In some levels that lie one after the other, a power of two of them."""

    def __init__(self, builder: Any, levels: Any, bounds: Any, first: int, count: int) -> None:
        """Pointers to the tables."""
        self._builder, self._count, self.num_steps = builder, count, count.bit_length() - 1
        self._levels = builder.gep(levels, [index(first)])
        self._bounds = builder.gep(bounds, [index(first)])

    def step(self, number: int, values: Any, below: Any) -> Any:
        """How many of the first bounds lie below each value, after one step more: [16] int32."""
        builder, size = self._builder, 2**number
        bound = _entries(builder, self._load_bounds(size), size, below)
        if UNIT.table_lanes == LANES:
            # The sign of bound - value goes in from below: no bound is -0 or infinite. A
            # comparison would take two instructions more.
            sign = builder.bitcast(builder.fsub(bound, values), _COUNTS)
            return instruction(builder, "llvm.fshl.v16i32", [below, sign, constant(_COUNTS, 1)])
        is_above = builder.fcmp_ordered(">", values, bound)
        twice = builder.add(below, below)
        return builder.select(is_above, builder.or_(twice, constant(_COUNTS, 1)), twice)

    def levels(self, below: Any) -> Any:
        """With so many bounds below them: [16] float32."""
        return _entries(self._builder, self._load_levels, self._count, below)

    def _load_bounds(self, size: int) -> Load:
        """Of the step that chooses among so many."""

        def load(place: Any, lanes: int) -> Any:
            source = self._builder.gep(self._bounds, [self._builder.add(index(size), place)])
            return _load(self._builder, source, F32, lanes)

        return load

    def _load_levels(self, place: Any, lanes: int) -> Any:
        builder = self._builder
        read = _load(builder, builder.gep(self._levels, [place]), BYTE, lanes)
        return builder.sitofp(read, F32 if lanes == 1 else floats(lanes))


def search_of(builder: Any, levels: Any, bounds: Any, width: int) -> Search:
    """Among those of codes of a width; addresses of the tables."""
    tables = builder.inttoptr(levels, BYTE.as_pointer()), builder.inttoptr(bounds, F32.as_pointer())
    return Search(builder, *tables, 2**width, 2**width)


def _load(builder: Any, source: Any, kind: Any, lanes: int) -> Any:
    if lanes == 1:
        return builder.load(source)
    return load_vector(builder, source, ir.VectorType(kind, lanes))


def _entries(builder: Any, load: Load, count: int, places: Any) -> Any:
    """Of a table of so many, which may be read beyond its end: the entry of each place, [16]."""
    if count == 1:
        return spread(builder, load(index(0), 1), CHUNK)
    lanes = UNIT.table_lanes
    if not lanes:
        return _one_by_one(builder, load, count, places)
    tables = [load(index(part), lanes) for part in range(0, count, lanes)]
    if lanes == LANES:
        return _looked_up(builder, tables, places)
    halves = []
    for first in range(0, CHUNK, lanes):
        part = builder.shuffle_vector(places, places, lane_numbers(range(first, first + lanes)))
        halves.append(_looked_up(builder, tables, part))
    return builder.shuffle_vector(*halves, lane_numbers(range(CHUNK)))


def _looked_up(builder: Any, tables: list[Any], places: Any) -> Any:
    """In vectors of as many entries as one instruction takes: higher bits choose among these."""
    lanes = places.type.count
    name = "llvm.x86.avx512.permvar.sf.512" if lanes == LANES else "llvm.x86.avx2.permps"
    if lanes == LANES and len(tables) > 1:
        found = [
            instruction(builder, "llvm.x86.avx512.vpermi2var.ps.512", [low, places, high])
            for low, high in zip(tables[::2], tables[1::2], strict=True)
        ]
        lanes *= 2
    else:
        found = [instruction(builder, name, [table, places]) for table in tables]
    while len(found) > 1:
        moved = builder.shl(places, constant(places.type, _SIGN + 1 - lanes.bit_length()))
        is_high = builder.icmp_signed("<", moved, constant(places.type, 0))
        pairs = zip(found[::2], found[1::2], strict=True)
        found, lanes = [builder.select(is_high, high, low) for low, high in pairs], 2 * lanes
    return found[0]


def _one_by_one(builder: Any, load: Load, count: int, places: Any) -> Any:
    """For CPUs that look nothing up."""
    cell = cgutils.alloca_once(builder, floats(CHUNK))
    builder.store(spread(builder, load(index(0), 1), CHUNK), cell)
    with cgutils.for_range(builder, index(count - 1)) as loop:
        place = builder.add(loop.index, index(1))
        is_here = builder.icmp_signed(
            "==", places, spread(builder, builder.trunc(place, I32), CHUNK)
        )
        entry = spread(builder, load(place, 1), CHUNK)
        builder.store(builder.select(is_here, entry, builder.load(cell)), cell)
    return builder.load(cell)
