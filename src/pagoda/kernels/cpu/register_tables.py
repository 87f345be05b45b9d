"""Tables of bytes, looked up for as many codes as a vector has."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    UNIT,
    index,
    instruction,
    lane_numbers,
    load_vector,
)

TABLE = 16
"""Entries that one instruction looks up."""


def read_table(builder: Any, table: Any, place: int) -> Any:
    """The entries from number `place` on."""
    return load_vector(builder, builder.gep(table, [index(place)]), ir.VectorType(BYTE, TABLE))


def look_up(builder: Any, table: Any, places: Any) -> Any:
    """Entries, int8, by a vector of places from 0 to 15, int8."""
    count = places.type.count
    if not UNIT.looks_up_bytes:
        memory = cgutils.alloca_once_value(builder, table)
        return gathered(builder, builder.bitcast(memory, BYTE.as_pointer()), places)
    if count == 2 * TABLE:
        twice = builder.shuffle_vector(table, table, lane_numbers([*range(TABLE)] * 2))
        return instruction(builder, "llvm.x86.avx2.pshuf.b", [twice, places])
    if count < TABLE:
        lanes = [min(lane, count - 1) for lane in range(TABLE)]
        places = builder.shuffle_vector(places, places, lane_numbers(lanes))
    found = instruction(builder, "llvm.x86.ssse3.pshuf.b.128", [table, places])
    if count < TABLE:
        found = builder.shuffle_vector(found, found, lane_numbers(range(count)))
    return found


def gathered(builder: Any, entries: Any, places: Any) -> Any:
    """Entries, int8, from a pointer to a table's first, lane by lane: for CPUs without `look_up`'s
    instruction. places: int8, not below 0."""
    found = ir.Constant(places.type, ir.Undefined)
    for lane in range(places.type.count):
        place = builder.extract_element(places, ir.Constant(I32, lane))
        entry = builder.load(builder.gep(entries, [builder.zext(place, I32)]))
        found = builder.insert_element(found, entry, ir.Constant(I32, lane))
    return found
