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
from pagoda.kernels.cpu.page_readers import Add, Source
from pagoda.kernels.cpu.path_subsets import Subsets
from pagoda.kernels.cpu.register_tables import TABLE, look_up, read_table
from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    floats,
    index,
    lane_numbers,
    load_vector,
    spread,
    store_vector,
)
from pagoda.kernels.vector_code import CHUNK, PLANES, Numbers, VectorCode

_TWO_BYTES = ir.IntType(16)
_FLOAT8_POWER = {"e4m3": 256.0, "e5m2": 1.0}
"""Its exponent's bias is 7 where that of float16 is 15."""


class Levels:
    """What codes of one kind stand for; a table is read once and stays in registers."""

    def __init__(self, builder: Any, code: VectorCode, table: Any) -> None:
        """table: pointer to a head's table, which begins with its levels."""
        self._builder, self._numbers = builder, code.numbers
        self._tables: dict[int, list[Any]] = {}
        self.paths: dict[int, Subsets] = {}
        """By the width of chunks that are paths."""
        for width in sorted(set(code.widths) - {0}) if code.numbers == "levels" else ():
            if code.is_path(width):
                self.paths[width] = Subsets(builder, width, table)
            else:
                parts = range(2**width, 2**width + max(2**width, TABLE), TABLE)
                self._tables[width] = [read_table(builder, table, place) for place in parts]

    def floats(self, codes: Any, width: int) -> Any:
        """Levels, float32, of a vector of codes, int8."""
        if self._numbers in _FLOAT8_POWER:
            return _from_float8(self._builder, codes, self._numbers)
        if self._numbers == "levels":
            codes = self._look_up(codes, self._tables[width])
        return self.widened(codes)

    def widened(self, levels: Any) -> Any:
        """Whole numbers, int8, as float32."""
        count = levels.type.count
        wide = self._builder.sext(levels, ir.VectorType(I32, count))
        return self._builder.sitofp(wide, floats(count))

    def _look_up(self, codes: Any, tables: Sequence[Any]) -> Any:
        """The lowest four bits look up in every table, the higher ones choose among these."""
        builder = self._builder
        places = builder.and_(codes, constant(codes.type, TABLE - 1))
        found, bit = [look_up(builder, table, places) for table in tables], TABLE
        while len(found) > 1:
            chosen = builder.and_(codes, constant(codes.type, bit))
            is_set = builder.icmp_signed("!=", chosen, constant(codes.type, 0))
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [builder.select(is_set, high, low) for low, high in pairs]
            bit *= 2
        return found[0]


class VectorDecoder:
    """See `KeyDecoder` and `ValueDecoder`: on any CPU."""

    def __init__(self, code: VectorCode, paired: bool, at_once: int = 1) -> None:
        """paired: groups are two bfloat16; else one float32. at_once: groups of values that are
        decoded together, of which a block has a multiple."""
        self._code, self._paired, self.at_once = code, paired, at_once
        self.groups = CHUNK // (1 + paired)
        self._levels: Levels | None = None

    def open(self, builder: Any, table: Any) -> None:
        """See `KeyDecoder`."""
        self._levels = Levels(builder, self._code, table)

    def keys(
        self, builder: Any, width: int, sources: Sequence[Source], stride: int, group: Any, add: Add
    ) -> None:
        """See `KeyDecoder`: part by part of the lowest plane, and of each byte by byte."""
        assert self._levels is not None
        if self._code.is_path(width):
            self._path_keys(builder, width, sources, stride, group, add)
            return
        pack, lowest = 1 + self._paired, PLANES[width][0]
        levels = self._levels

        def read(source: Source, first: Any, part: int) -> Any:
            def row(byte: Any) -> Any:
                place = builder.gep(source.first, [builder.mul(byte, index(stride))])
                return load_vector(builder, place, ir.VectorType(BYTE, source.lanes))

            bytes_of = [builder.add(first, index(each)) for each in range(pack)]
            codes = [across(builder, width, byte, part, row) for byte in bytes_of]
            return _as_group(builder, [levels.floats(each, width) for each in codes])

        step = index(lowest.num_bytes)
        for part in range(8 // lowest.bits):
            with cgutils.for_range_slice(builder, index(0), step, index(pack)) as (first, _):
                number = builder.add(first, index(part * lowest.num_bytes))
                groups = [read(source, first, part) for source in sources]
                add(builder.add(group, builder.udiv(number, index(pack))), groups)

    def zeros(self, lanes: int) -> Any:
        """See `KeyDecoder`."""
        return constant(ir.VectorType(I32, lanes), 0)

    def _path_keys(
        self, builder: Any, width: int, sources: Sequence[Source], stride: int, group: Any, add: Add
    ) -> None:
        """Where all levels of a chunk are first, as bytes, and then number by number."""
        pack, levels = 1 + self._paired, self._levels
        assert levels is not None
        subsets = levels.paths[width]
        kept = [_across(builder, subsets, source, stride) for source in sources]

        def read(source: Source, memory: Any, number: Any) -> Any:
            found = []
            for each in range(pack):
                row = builder.mul(builder.add(number, index(each)), index(source.lanes))
                place = builder.gep(memory, [row])
                read = load_vector(builder, place, ir.VectorType(BYTE, source.lanes))
                found.append(levels.widened(subsets.levels(read)))
            return _as_group(builder, found)

        step = index(pack)
        with cgutils.for_range_slice(builder, index(0), index(CHUNK), step) as (number, count):
            groups = [read(*each, number) for each in zip(sources, kept, strict=True)]
            add(builder.add(group, count), groups)

    def values(self, builder: Any, width: int, planes: Sequence[Any]) -> list[Any]:
        """See `ValueDecoder`."""
        pack = 1 + self._paired
        found = self._values(builder, width, planes, pack * self.at_once)
        return [_as_group(builder, found[i : i + pack]) for i in range(0, len(found), pack)]

    def _values(self, builder: Any, width: int, planes: Sequence[Any], tokens: int) -> list[Any]:
        """A chunk of so many tokens, [16] float32 each."""
        levels = self._levels
        assert levels is not None
        if self._code.is_path(width):
            all_levels = levels.paths[width].along(planes[0], tokens)
            lanes = [range(CHUNK * token, CHUNK * (token + 1)) for token in range(tokens)]
            return [
                levels.widened(builder.shuffle_vector(all_levels, all_levels, lane_numbers(each)))
                for each in lanes
            ]
        sizes = [plane.num_bytes for plane in self._code.planes(width)]
        sources = [
            [
                builder.gep(source, [index(token * size)])
                for size, source in zip(sizes, planes, strict=True)
            ]
            for token in range(tokens)
        ]
        return [levels.floats(along(builder, width, each), width) for each in sources]


def _across(builder: Any, subsets: Subsets, source: Source, stride: int) -> Any:
    """Pointer to what `Subsets.across` finds of a chunk, [16, lanes] int8, on the stack."""

    def row(byte: int) -> Any:
        place = builder.gep(source.first, [index(byte * stride)])
        return load_vector(builder, place, ir.VectorType(BYTE, source.lanes))

    array = ir.ArrayType(I32, CHUNK * source.lanes // 4)
    memory = builder.bitcast(cgutils.alloca_once(builder, array), BYTE.as_pointer())
    for number, found in enumerate(subsets.across(row)):
        store_vector(builder, found, builder.gep(memory, [index(2 * number * source.lanes)]))
    return memory


def across(builder: Any, width: int, first: Any, part: int, row: Callable[[Any], Any]) -> Any:
    """Codes of one number of a chunk, of as many vectors as a row has lanes, int8.

    The number is that of part `part` of byte `first` of the lowest plane. row: makes the vector of
    a byte of the chunk, of each vector.
    """
    step = PLANES[width][0].num_bytes
    number = builder.add(first, index(part * step))
    codes = None
    for plane in PLANES[width]:
        place, shift = first, constant(I32, part * plane.bits)
        if plane.low > 0:
            place = builder.and_(number, index(plane.num_bytes - 1))
            turns = builder.lshr(number, index(plane.num_bytes.bit_length() - 1))
            shift = builder.trunc(builder.mul(turns, index(plane.bits)), I32)
        read = row(builder.add(place, index(plane.start)))
        codes = _joined(builder, codes, _bits(builder, read, shift, plane.bits), plane.low)
    return codes


def along(builder: Any, width: int, planes: Sequence[Any]) -> Any:
    """Codes of all numbers of a chunk, [16] int8, from pointers to the bytes of its planes."""
    codes = None
    for plane, source in zip(PLANES[width], planes, strict=True):
        found = _plane(builder, source, plane.bits)
        codes = _joined(builder, codes, found, plane.low)
    return codes


def _as_group(builder: Any, found: Sequence[Any]) -> Any:
    """int32 of one vector of float32, or of two: pairs of numbers that bfloat16 holds exactly."""
    kind = ir.VectorType(I32, found[0].type.count)
    if len(found) == 1:
        return builder.bitcast(found[0], kind)
    first, second = found
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
    """Codes, None for a beginning, with the bits from bit `low` on beside them."""
    if codes is None:
        return higher
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
