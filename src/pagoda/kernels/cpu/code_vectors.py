"""Codes of keys and values as float32, in registers: the emitted side of `vector_code`.

Levels are whole numbers of at most eight bits, or float8, so bfloat16 holds each exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.half import from_half
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    UNIT,
    floats,
    index,
    instruction,
    load_vector,
    spread,
)
from pagoda.kernels.vector_code import CHUNK, PLANES, Numbers, VectorCode

_TWO_BYTES = ir.IntType(16)
_TABLE = 16
"""Entries that one instruction looks up."""
_FLOAT8_POWER = {"e4m3": 256.0, "e5m2": 1.0}
"""Its exponent's bias is 7 where that of float16 is 15."""


class Levels:
    """What codes of one kind stand for; a table is read once and stays in registers."""

    def __init__(self, builder: Any, code: VectorCode, table: Any) -> None:
        """table: pointer to bytes, laid out as `TABLE_SIZE` says."""
        self._builder, self._numbers = builder, code.numbers
        self._tables: dict[int, list[Any]] = {}
        if code.numbers == "levels":
            for width in sorted(set(code.widths) - {0}):
                parts = range(0, max(2**width, _TABLE), _TABLE)
                self._tables[width] = [_read_table(builder, table, 2**width + i) for i in parts]

    def floats(self, codes: Any, width: int) -> Any:
        """Levels, float32, of a vector of codes: int8."""
        builder = self._builder
        if self._numbers in _FLOAT8_POWER:
            return _from_float8(builder, codes, self._numbers)
        if self._numbers == "levels":
            codes = self._look_up(codes, self._tables[width])
        wide = builder.sext(codes, ir.VectorType(I32, codes.type.count))
        return builder.sitofp(wide, floats(codes.type.count))

    def _look_up(self, codes: Any, tables: Sequence[Any]) -> Any:
        """The lowest four bits look up in every table, the higher ones choose among these."""
        builder = self._builder
        found, bit = [_look_up_bytes(builder, table, codes) for table in tables], _TABLE
        while len(found) > 1:
            chosen = builder.and_(codes, constant(codes.type, bit))
            is_set = builder.icmp_signed("!=", chosen, constant(codes.type, 0))
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [builder.select(is_set, high, low) for low, high in pairs]
            bit *= 2
        return found[0]


def across(builder: Any, width: int, first: Any, part: int, row: Callable[[Any], Any]) -> Any:
    """Codes of one number of a chunk, of as many vectors as a row has lanes, int8.

    The number is that of part `part` of byte `first` of the lowest plane. row: makes the vector of
    a byte of the chunk, of each vector.
    """
    lowest = PLANES[width][0]
    number = builder.add(first, index(part * 2 * lowest))
    codes, low, start = None, 0, 0
    for bits in PLANES[width]:
        place, shift = first, constant(I32, part * bits)
        if low > 0:
            place = builder.and_(number, index(2 * bits - 1))
            turns = builder.lshr(number, index((2 * bits).bit_length() - 1))
            shift = builder.trunc(builder.mul(turns, index(bits)), I32)
        found = _bits(builder, row(builder.add(place, index(start))), shift, bits)
        codes = found if codes is None else _joined(builder, codes, found, low)
        low, start = low + bits, start + 2 * bits
    return codes


def along(builder: Any, width: int, chunk: Any) -> Any:
    """Codes of all numbers of the chunk that a pointer to bytes leads to: [16] int8."""
    codes, low, start = None, 0, 0
    for bits in PLANES[width]:
        found = _plane(builder, builder.gep(chunk, [index(start)]), bits)
        codes = found if codes is None else _joined(builder, codes, found, low)
        low, start = low + bits, start + 2 * bits
    return codes


def pairs_of(builder: Any, first: Any, second: Any) -> Any:
    """Groups of two bfloat16 from vectors of float32 that bfloat16 holds exactly: int32."""
    kind = ir.VectorType(I32, first.type.count)
    low = builder.lshr(builder.bitcast(first, kind), constant(kind, 16))
    return builder.or_(low, builder.bitcast(second, kind))


def _plane(builder: Any, source: Any, bits: int) -> Any:
    """Sixteen codes of a plane: its bytes once for each shift, side by side."""
    kind = ir.IntType(16 * bits)
    if bits == 8:
        return load_vector(builder, source, ir.VectorType(BYTE, CHUNK))
    read = builder.load(builder.bitcast(source, kind.as_pointer()), align=1)
    copies = spread(builder, read, 8 // bits)
    shifts = ir.Constant(copies.type, [bits * part for part in range(8 // bits)])
    shifted = builder.bitcast(builder.lshr(copies, shifts), ir.VectorType(BYTE, CHUNK))
    return builder.and_(shifted, constant(shifted.type, 2**bits - 1))


def _bits(builder: Any, read: Any, shift: Any, bits: int) -> Any:
    """`bits` bits of each byte, from bit `shift` on.

    Bytes are shifted two at a time: a CPU has no instruction for one, and what comes over from the
    next is not among those bits.
    """
    if bits == 8:
        return read
    count = read.type.count
    kind = ir.VectorType(_TWO_BYTES, count // 2) if count % 2 == 0 else read.type
    amount = spread(builder, builder.trunc(shift, kind.element), kind.count)
    shifted = builder.bitcast(builder.lshr(builder.bitcast(read, kind), amount), read.type)
    return builder.and_(shifted, constant(read.type, 2**bits - 1))


def _joined(builder: Any, codes: Any, higher: Any, low: int) -> Any:
    return builder.or_(codes, builder.shl(higher, constant(higher.type, low)))


def _from_float8(builder: Any, codes: Any, numbers: Numbers) -> Any:
    """By way of float16, which holds every float8 and its smallest numbers too."""
    count = codes.type.count
    wide_kind = ir.VectorType(_TWO_BYTES, count)
    half = builder.shl(builder.zext(codes, wide_kind), constant(wide_kind, 8))
    if numbers == "e4m3":  # an exponent of one bit less: the sign stays, the rest moves down
        half = builder.and_(builder.ashr(half, constant(wide_kind, 1)), constant(wide_kind, 0xBFFF))
    wide = from_half(builder, half)
    power = _FLOAT8_POWER[numbers]
    return wide if power == 1.0 else builder.fmul(wide, constant(wide.type, power))


def _read_table(builder: Any, table: Any, place: int) -> Any:
    return load_vector(builder, builder.gep(table, [index(place)]), ir.VectorType(BYTE, _TABLE))


def _look_up_bytes(builder: Any, table: Any, codes: Any) -> Any:
    """Entries of a table in a register, by the lowest four bits of each code."""
    places = builder.and_(codes, constant(codes.type, _TABLE - 1))
    count = codes.type.count
    if not UNIT.looks_up_bytes:
        return _extracted(builder, table, places)
    lanes = ir.Constant(ir.VectorType(I32, _TABLE), [min(i, count - 1) for i in range(_TABLE)])
    if count < _TABLE:
        places = builder.shuffle_vector(places, places, lanes)
    found = instruction(builder, "llvm.x86.ssse3.pshuf.b.128", [table, places])
    if count < _TABLE:
        first = ir.Constant(ir.VectorType(I32, count), list(range(count)))
        found = builder.shuffle_vector(found, found, first)
    return found


def _extracted(builder: Any, table: Any, places: Any) -> Any:
    """The same, lane by lane, from memory."""
    memory = cgutils.alloca_once_value(builder, table)
    entries = builder.bitcast(memory, BYTE.as_pointer())
    found = ir.Constant(places.type, ir.Undefined)
    for lane in range(places.type.count):
        place = builder.extract_element(places, ir.Constant(I32, lane))
        entry = builder.load(builder.gep(entries, [builder.zext(place, I32)]))
        found = builder.insert_element(found, entry, ir.Constant(I32, lane))
    return found
