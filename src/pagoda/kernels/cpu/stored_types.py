"""Quantised types as data: where a block keeps its codes, and how its scales are made.

A block is so many numbers of one row. Each of them is

    scale · code           or           scale · code + addend

with a small whole `code`, a small float, or an entry of a table that it names, and a scale of 16
numbers or more. Wherever there is an addend, scales have few bits: the product is exact in float32
and a sum is rounded once, so the number is the same whether the addition is fused with the
multiplication or not, and the very one that de-quantising gives. Where there is none, scales of
float32 and entries of tables round the product, once, just as de-quantising in float32 does.
Formats of GGUF: github.com/ggml-org/ggml, src/ggml-common.h, ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from llvmlite import ir

from pagoda.kernels.block_types import BLOCK_TYPES, CODES, GROUPED_TYPES, SCALE_BYTES, GroupedType
from pagoda.kernels.cpu.half import from_half
from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import I32, LANES, floats

Position = tuple[int, int]
"""A byte of a block, and the lowest bit in it."""
Scale = tuple[Any, Any]
"""Vectors of float32, a lane for each of sixteen rows: scale and addend, which may be None."""


class Head:
    """A block's bytes beside its codes, of sixteen rows at once, while code is emitted."""

    def __init__(self, builder: Any, byte: Callable[[int], Any]) -> None:
        """`byte`: gives byte `n` of each row's block, [16] int8."""
        self.builder, self.byte = builder, byte

    def half(self, place: int) -> Any:
        """The float16 in two bytes, as float32; it is finite."""
        return from_half(self.builder, self._together(place, 2, ir.IntType(16)))

    def brain(self, place: int) -> Any:
        """The bfloat16 in two bytes, as float32."""
        bits = self._together(place, 2, I32)
        return self.builder.bitcast(self.shifted(bits, 16), floats())

    def single(self, place: int) -> Any:
        """The float32 in four bytes."""
        return self.builder.bitcast(self._together(place, 4, I32), floats())

    def _together(self, place: int, count: int, kind: Any) -> Any:
        """So many bytes as one whole number."""
        wide = ir.VectorType(kind, LANES)
        bits = self.builder.zext(self.byte(place), wide)
        for number in range(1, count):
            more = self.builder.zext(self.byte(place + number), wide)
            bits = self.builder.or_(bits, self.shifted(more, 8 * number))
        return bits

    def bits(self, place: int, first: int, count: int) -> Any:
        """`count` bits of a byte from bit `first` on, fewer than eight: an int8, not below 0."""
        byte = self.byte(place)
        if first:
            byte = self.builder.lshr(byte, constant(byte.type, first))
        return byte if first + count == 8 else self.masked(byte, (1 << count) - 1)

    def joined(self, low: Any, high: Any, num_low: int) -> Any:
        """One int8 of its low bits, so many, and its high ones."""
        return self.builder.or_(low, self.shifted(high, num_low))

    def less(self, value: Any, offset: int) -> Any:
        """An int8 minus a constant."""
        return self.builder.sub(value, constant(value.type, offset))

    def times(self, number: Any, whole: Any) -> Any:
        """A float32 times an int8, of two's complement."""
        return self.builder.fmul(number, self.builder.sitofp(whole, floats()))

    def negative(self, number: Any) -> Any:
        """A float32 with its sign turned."""
        return self.builder.fneg(number)

    def masked(self, value: Any, mask: int) -> Any:
        return self.builder.and_(value, constant(value.type, mask))

    def shifted(self, value: Any, bits: int) -> Any:
        """To the left."""
        return self.builder.shl(value, constant(value.type, bits))


@dataclass(frozen=True, slots=True)
class StoredType:
    """One type."""

    name: str
    scale_values: int
    """Numbers that share a scale."""
    low_bits: int
    """Bits of a code that lie together; `high_bits` more lie elsewhere."""
    low: Callable[[int], Position]
    """Where the low bits of a number's code lie."""
    scale: Callable[[Head, int], Scale]
    """Emits what the numbers of scale `n` of a block have in common."""
    halves: tuple[int, ...] = (0,)
    """Bytes where its float16 numbers begin."""
    high_bits: int = 0
    high: Callable[[int], Position] | None = None
    offset: int = 0
    """A code is what is stored minus this."""
    is_signed: bool = False
    """A code is stored as two's complement."""
    exponent_bits: int = 0
    """A code is a float: a sign, so many bits of exponent, and a fraction; 0: it is none."""
    table: tuple[float, ...] = ()
    """What codes name, where they are no numbers."""
    scale_bits: int = 0
    """Of a scale's fraction, where codes have eight bits and scales float16's size and no addend;
    else 0."""

    @property
    def bits(self) -> int:
        """Of a code."""
        return self.low_bits + self.high_bits

    @property
    def block_values(self) -> int:
        """Numbers of a row in one block."""
        return BLOCK_TYPES[self.name].num_values

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return BLOCK_TYPES[self.name].num_bytes

    @property
    def head(self) -> tuple[int, ...]:
        """The bytes that hold no codes, in order."""
        codes = {self.low(value)[0] for value in range(self.block_values)}
        if self.high is not None:
            codes |= {self.high(value)[0] for value in range(self.block_values)}
        return tuple(place for place in range(self.block_bytes) if place not in codes)


def _nibbles(first: int, run: int) -> Callable[[int], Position]:
    """Four bits: of each 2 · run numbers the first half in low halves of bytes, then the others."""

    def place(value: int) -> Position:
        group, rest = divmod(value, 2 * run)
        return first + group * run + rest % run, rest // run * 4

    return place


def _planes(first: int, run: int, bits: int) -> Callable[[int], Position]:
    """So few bits that `run` bytes hold run · 8 / bits numbers, a plane of them after the other."""

    def place(value: int) -> Position:
        group, rest = divmod(value, run * 8 // bits)
        return first + group * run + rest % run, rest // run * bits

    return place


def _in_order(first: int, bits: int) -> Callable[[int], Position]:
    """Number after number, from the lowest bit of the first byte on."""
    return lambda value: (first + value * bits // 8, value * bits % 8)


def _one_scale(head: Head, number: int) -> Scale:
    return head.half(0), None


def _scale_and_minimum(head: Head, number: int) -> Scale:
    return head.half(0), head.half(2)


def _two_bit(head: Head, number: int) -> Scale:
    scale = head.times(head.half(80), head.bits(number, 0, 4))
    minimum = head.times(head.half(82), head.bits(number, 4, 4))
    return scale, head.negative(minimum)


def _three_bit(head: Head, number: int) -> Scale:
    low = head.bits(96 + number % 8, number // 8 * 4, 4)
    high = head.bits(104 + number % 4, number // 4 * 2, 2)
    return head.times(head.half(108), head.less(head.joined(low, high, 4), 32)), None


def _six_bit_pairs(head: Head, number: int) -> Scale:
    """Eight scales and eight minima of six bits in twelve bytes."""
    if number < 4:
        scale, minimum = head.bits(4 + number, 0, 6), head.bits(8 + number, 0, 6)
    else:
        rest = 8 + number
        scale = head.joined(head.bits(rest, 0, 4), head.bits(number, 6, 2), 4)
        minimum = head.joined(head.bits(rest, 4, 4), head.bits(4 + number, 6, 2), 4)
    return head.times(head.half(0), scale), head.negative(head.times(head.half(2), minimum))


def _six_bit(head: Head, number: int) -> Scale:
    return head.times(head.half(208), head.byte(192 + number)), None


def _four_bit_table(head: Head, number: int) -> Scale:
    low = head.bits(4 + number // 2, number % 2 * 4, 4)
    high = head.bits(2 + number // 4, number % 4 * 2, 2)
    return head.times(head.half(0), head.less(head.joined(low, high, 4), 32)), None


_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

_TYPES = (
    StoredType("Q4_0", 32, 4, _nibbles(2, 16), _one_scale, offset=8),
    StoredType("Q4_1", 32, 4, _nibbles(4, 16), _scale_and_minimum, halves=(0, 2)),
    StoredType(
        "Q5_0", 32, 4, _nibbles(6, 16), _one_scale,
        high_bits=1, high=_in_order(2, 1), offset=16,
    ),
    StoredType(
        "Q5_1", 32, 4, _nibbles(8, 16), _scale_and_minimum,
        halves=(0, 2), high_bits=1, high=_in_order(4, 1),
    ),
    StoredType("Q8_0", 32, 8, _in_order(2, 8), _one_scale, is_signed=True, scale_bits=11),
    StoredType("Q2_K", 16, 2, _planes(16, 32, 2), _two_bit, halves=(80, 82)),
    StoredType(
        "Q3_K", 16, 2, _planes(32, 32, 2), _three_bit,
        halves=(108,), high_bits=1, high=_planes(0, 32, 1), offset=4,
    ),
    StoredType("Q4_K", 32, 4, _nibbles(16, 32), _six_bit_pairs, halves=(0, 2)),
    StoredType(
        "Q5_K", 32, 4, _nibbles(48, 32), _six_bit_pairs,
        halves=(0, 2), high_bits=1, high=_planes(16, 32, 1),
    ),
    StoredType(
        "Q6_K", 16, 4, _nibbles(0, 64), _six_bit,
        halves=(208,), high_bits=2, high=_planes(128, 32, 2), offset=32,
    ),
    StoredType("IQ4_NL", 32, 4, _nibbles(2, 16), _one_scale, table=_NON_LINEAR),
    StoredType("IQ4_XS", 32, 4, _nibbles(8, 16), _four_bit_table, table=_NON_LINEAR),
)  # fmt: skip

_READ = {"f16": Head.half, "bf16": Head.brain, "f32": Head.single}
_FRACTION_BITS = {"f16": 11, "bf16": 0, "f32": 0}
"""0: so large a scale may be that what numbers are raised by, times it, is infinite."""
_KINDS: dict[str, dict[str, Any]] = {
    "int4": {"offset": 8}, "int8": {"is_signed": True}, "uint8": {"is_signed": True},
    "e4m3": {"exponent_bits": 4},
}  # fmt: skip
"""What `CODES` leave open."""


def _grouped(kind: GroupedType) -> StoredType:
    """One of Pagoda's own types."""
    code, zero = CODES[kind.code], SCALE_BYTES[kind.scale]

    def scale(head: Head, number: int) -> Scale:
        found = _READ[kind.scale](head, 0)
        if not code.has_zero:
            return found, None
        return found, head.negative(head.times(found, head.byte(zero)))

    return StoredType(
        str(kind), 32, code.bits, _in_order(zero + code.has_zero, code.bits), scale,
        halves=(0,) if kind.scale == "f16" else (), table=code.table,
        scale_bits=0 if code.has_zero else _FRACTION_BITS[kind.scale], **_KINDS.get(kind.code, {}),
    )  # fmt: skip


STORED_TYPES = MappingProxyType(
    {each.name: each for each in (*_TYPES, *map(_grouped, GROUPED_TYPES.values()))}
)
"""By their names, those of GGUF first."""
