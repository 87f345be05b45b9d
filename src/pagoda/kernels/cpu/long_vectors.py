"""What is done with sixty-four bytes at once, of CPUs with long tables (`UNIT.long_tables`).

Four rows of sixteen codes are in them, in one of two orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import BYTE, LANES, index, instruction, lane_numbers, load_vector

LONG = 64
"""Bytes of a long vector."""
BYTES = ir.VectorType(BYTE, LONG)
SHORTS = ir.VectorType(ir.IntType(16), LONG // 2)
WORD = 8
"""Bytes within which bits are moved."""
ROWS = LONG // LANES
"""Rows of sixteen codes that are decoded together."""
Order = tuple[tuple[int, int], ...]
"""Of each byte its lane and its row."""
QUARTER_BY_QUARTER: Order = tuple(
    (4 * quarter + lane, row + first)
    for quarter in range(4)
    for first in (0, 2)
    for lane in range(4)
    for row in range(2)
)
"""In each sixteen bytes four lanes: their first two rows, a short each, and then the other two. So
lower and upper bytes of numbers become pairs by unpacking within sixteen bytes."""
LANE_BY_LANE: Order = tuple((lane, row) for lane in range(LANES) for row in (0, 2, 1, 3))
"""Shorts have the first two rows in their lower bytes, and the others in the upper ones."""


def look_up_shorts(builder: Any, tables: Sequence[Any], places: Any) -> Any:
    """[32] int16: of each short the entry that its lowest five bits name, or six of two tables.

    tables: [32] int16 each, one after the other; places: [32] int16.
    """
    if len(tables) == 1:
        return instruction(builder, "llvm.x86.avx512.permvar.hi.512", [tables[0], places])
    first, second = tables
    name = "llvm.x86.avx512.vpermi2var.hi.512"
    return instruction(builder, name, [first, places, second])


def look_up_bytes(builder: Any, table: Any, places: Any) -> Any:
    """[64] int8: of each byte the entry of a table, [64] int8, that its lowest six bits name."""
    return instruction(builder, "llvm.x86.avx512.permvar.qi.512", [table, places])


def rows_of_bytes(builder: Any, source: Any, stride: int, first: int, count: int) -> Any:
    """Rows of sixteen bytes, [16 · count] int8, `stride` bytes from one to the next."""
    if stride == LANES:
        start = builder.gep(source, [index(first * stride)])
        return load_vector(builder, start, ir.VectorType(BYTE, count * LANES))
    found = None
    for row in range(first, first + count):
        start = builder.gep(source, [index(row * stride)])
        read = load_vector(builder, start, ir.VectorType(BYTE, LANES))
        found = read if found is None else _beside(builder, found, read)
    return found


def shuffled(builder: Any, read: Any, places: Sequence[int]) -> Any:
    """[64] int8: of each a byte of what was read."""
    return builder.shuffle_vector(read, read, lane_numbers(places))


def moved(builder: Any, read: Any, starts: Sequence[int]) -> Any:
    """[64] int8: of each, eight bits of its word of eight bytes, a ring, from bit `start` on."""
    control = ir.Constant(BYTES, [start % LONG for start in starts])
    return instruction(builder, "llvm.x86.avx512.pmultishift.qb.512", [control, read])


def shifted(builder: Any, read: Any, starts: Sequence[int]) -> Any:
    """[64] int8: each byte from its bit `start` on, or moved up where that is below 0.

    What comes over from other bytes may be anything. Where both bytes of each short move alike, and
    all in one direction, one shift is enough; else they are picked out of words.
    """
    if not any(starts):
        return read
    of_shorts = starts[::2]
    if of_shorts != starts[1::2] or min(starts) < 0 < max(starts):
        return moved(builder, read, [8 * (i % WORD) + start for i, start in enumerate(starts)])
    shift = builder.shl if min(starts) < 0 else builder.lshr
    sizes = ir.Constant(SHORTS, [abs(start) for start in of_shorts])
    return builder.bitcast(shift(builder.bitcast(read, SHORTS), sizes), BYTES)


def joined(builder: Any, lower: Any, upper: Any, bits: int) -> Any:
    """[64] int8: the lowest `bits` bits of the one, and what is above them of the other."""
    low, high = (constant(BYTES, each) for each in (2**bits - 1, -(2**bits)))
    return builder.or_(builder.and_(lower, low), builder.and_(upper, high))


def _beside(builder: Any, left: Any, right: Any) -> Any:
    """A vector of sixteen after a longer one."""
    size = left.type.count
    padded = builder.shuffle_vector(right, right, lane_numbers([i % LANES for i in range(size)]))
    return builder.shuffle_vector(left, padded, lane_numbers(range(size + LANES)))
