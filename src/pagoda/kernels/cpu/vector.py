"""Vector code that a compiler would not find by itself, written straight into LLVM's language.

Vectors have sixteen lanes of float32; where a CPU's registers are narrower, LLVM takes several for
one. Everything here emits instructions and is for functions marked `emitted`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils, config

from pagoda.kernels.cpu.number import (
    constant,
    emitted,
    fused,
    polynomial,
    power_of_two,
    rounded,
    widened,
)

LANES = 16
LINE_BYTES = 64
"""Of a cache line."""
BYTE, I32, INDEX, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """What tiles are cut for."""

    registers: int
    """Vectors of sixteen float32 that all registers can hold."""
    accumulators: int
    """How many of them may be sums."""
    pairs: bool
    """There is an instruction that multiplies pairs of bfloat16 and adds both products."""
    scales: bool
    """There is one that multiplies by a power of two."""
    spread_lanes: int
    """Lanes of a register that is filled from one number in memory; 0: left to LLVM."""
    table_lanes: int
    """Entries of a table that one instruction looks up for as many lanes; 0: there is none."""
    looks_up_bytes: bool
    """There is one that looks up bytes in a table of sixteen."""
    byte_products: int
    """Products of bytes that one instruction adds up: 4, 2, or 0 where there is none."""
    halves: bool
    """There are instructions between float16 and float32."""
    long_tables: bool = False
    """There are instructions that look up 64 bytes in a table of 64, or of 128, and 32 of two bytes
    in a table of 32, or of 64."""


def _host_unit() -> VectorUnit:
    features = _features()
    fours = "avxvnni" in features or {"avx512vnni", "avx512vl"} <= features
    of_bytes = ("avx2" in features, 4 if fours else 2 if "avx2" in features else 0)
    halves = bool({"f16c", "avx512f", "neon"} & features)
    if "avx512f" in features:
        pairs = {"avx512bf16", "avx512vl", "avx512bw", "avx512vnni"} <= features
        long_tables = "avx512vbmi" in features
        return VectorUnit(32, 24, pairs, True, 0, 16, *of_bytes, halves, long_tables)
    if "avx" in features or "neon" in features:
        spread_and_table = (8, 8) if "avx2" in features else (0, 0)
        return VectorUnit(8, 6, False, False, *spread_and_table, *of_bytes, halves)
    return VectorUnit(4, 2, False, False, 0, 0, *of_bytes, halves)


def _features() -> set[str]:
    """Features of the CPU that Numba compiles for: this one, or the one that NUMBA_CPU_NAME
    and NUMBA_CPU_FEATURES name."""
    name, features = getattr(config, "CPU_NAME", None), getattr(config, "CPU_FEATURES", None)
    if name is not None or features is not None:
        return {word[1:] for word in (features or "").split(",") if word.startswith("+")}
    return {name for name, present in llvm.get_host_cpu_features().items() if present}


UNIT = _host_unit()


def floats(lanes: int = LANES) -> Any:
    """The type of a vector of float32."""
    return ir.VectorType(F32, lanes)


def index(value: int) -> Any:
    """A constant index."""
    return ir.Constant(INDEX, value)


def load_vector(builder: Any, source: Any, vector: Any) -> Any:
    """A vector from a pointer to its first element, which may lie anywhere."""
    return builder.load(builder.bitcast(source, vector.as_pointer()), align=1)


def store_vector(builder: Any, value: Any, target: Any) -> None:
    """Write a vector to a pointer to its first element, which may lie anywhere."""
    builder.store(value, builder.bitcast(target, value.type.as_pointer()), align=2)


def spread(builder: Any, value: Any, lanes: int) -> Any:
    """A vector with the value in every lane."""
    vector = ir.VectorType(value.type, lanes)
    nothing = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, lanes), None))


def spread_first(builder: Any, value: Any, lanes: int) -> Any:
    """`spread`, which a CPU's own instruction does while it reads the value from memory.

    LLVM would rather shift or mask the value first and then spread it, in twice as many steps.
    """
    register = UNIT.spread_lanes
    if not register or lanes % register:
        return spread(builder, value, lanes)
    one = opaque(builder, spread(builder, value, register))
    lane = ir.Constant(ir.VectorType(I32, lanes), [i % register for i in range(lanes)])
    return builder.shuffle_vector(one, one, lane)


def opaque(builder: Any, value: Any) -> Any:
    """A vector or pointer of which LLVM knows nothing more: an instruction of no bytes makes it.

    So it does not take apart what is done with it. It takes the instruction to read and write any
    memory: what was written before it is there for the pointer that it makes.
    """
    kind = ir.FunctionType(value.type, [value.type])
    register = "r" if isinstance(value.type, ir.PointerType) else "x"
    return builder.call(ir.InlineAsm(kind, "", f"={register},0"), [value])


def prefetch(builder: Any, pointer: Any) -> None:
    """Ask for the cache line that the pointer is in, ahead of use; it may point anywhere.

    It comes into the second level: the first one has few places for lines that are on their way,
    which what is read meanwhile wants too.
    """
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, second_level, data_cache = (ir.Constant(I32, value) for value in (0, 2, 1))
    pointer = builder.bitcast(pointer, cgutils.voidptr_t)
    builder.call(function, [pointer, read, second_level, data_cache])


@emitted
def ask(typing: Any, address: Any) -> Any:
    """`prefetch` of an address. For kernels only."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        prefetch(builder, builder.inttoptr(args[0], cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(types.intp), emit


def keep_loop(builder: Any) -> None:
    """Keep the loop around this from being unrolled: its sums would no longer fit registers.

    An instruction of no bytes that must not be moved under another condition.
    """
    nothing = ir.FunctionType(ir.VoidType(), [])
    builder.call(ir.InlineAsm(nothing, "", "", side_effect=True), [], attrs=("convergent",))


def read_again(builder: Any) -> None:
    """Keep what was read before this from serving what is read after it.

    An instruction of no bytes that might write anywhere.
    """
    nothing = ir.FunctionType(ir.VoidType(), [])
    builder.call(ir.InlineAsm(nothing, "", "~{memory}", side_effect=True), [])


def factors(paired: bool, lanes: int) -> list[Callable[[Any, Any], Any]]:
    """What makes vectors of int32, groups in each lane, into factors of `multiply_add`.

    All of them in turn give the whole product: one, or one for each half of a pair.
    """
    return [_pairs] if paired and _multiplies_pairs(lanes) else halves(paired)


def halves(paired: bool) -> list[Callable[[Any, Any], Any]]:
    """What makes vectors of groups into float32: of all groups, or of the lower half of each pair
    and of the upper."""
    return [_lower, _upper] if paired else [_whole]


def multiply_add(builder: Any, x: Any, y: Any, total: Any) -> Any:
    """total + the products of `factors`: one product in each lane, or two."""
    if x.type == total.type:
        return fused(builder, x, y, total)
    lanes = total.type.count
    if lanes < _LEAST_PAIRS:
        parts = (_widened(builder, part, _LEAST_PAIRS // lanes) for part in (x, y, total))
        return _first_lanes(builder, multiply_add(builder, *parts), lanes)
    kind = ir.FunctionType(total.type, [total.type, x.type, y.type])
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [total, x, y])


def _multiplies_pairs(lanes: int) -> bool:
    """Whatever the number: the instruction rounds otherwise than two products one by one."""
    return UNIT.pairs and lanes in (1, 2, 4, 8, 16)


def _widened(builder: Any, vector: Any, times: int) -> Any:
    """A vector, and what is never read after it."""
    lanes = [min(lane, vector.type.count - 1) for lane in range(times * vector.type.count)]
    return builder.shuffle_vector(vector, vector, lane_numbers(lanes))


def _first_lanes(builder: Any, vector: Any, count: int) -> Any:
    return builder.shuffle_vector(vector, vector, lane_numbers(range(count)))


def lane_numbers(lanes: Sequence[int]) -> Any:
    """Which lanes of two vectors a shuffle takes."""
    return ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))


def _whole(builder: Any, groups: Any) -> Any:
    return builder.bitcast(groups, floats(groups.type.count))


def _pairs(builder: Any, groups: Any) -> Any:
    return builder.bitcast(groups, ir.VectorType(_BFLOAT, 2 * groups.type.count))


def _lower(builder: Any, groups: Any) -> Any:
    return _whole(builder, builder.shl(groups, constant(groups.type, 16)))


def _upper(builder: Any, groups: Any) -> Any:
    return _whole(builder, builder.and_(groups, constant(groups.type, 0xFFFF0000)))


_LEAST_PAIRS = 4
"""Fewest lanes of the instruction for pairs."""


class _BFloat(ir.Type):
    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_BFLOAT = _BFloat()


def powers_of_two(builder: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """`power_of_two` of a vector of sixteen, with a CPU's own instructions where it has them."""
    if not UNIT.scales:
        return power_of_two(builder, x, coefficients)
    whole = instruction(builder, "llvm.roundeven.v16f32", [x])
    p = polynomial(builder, builder.fsub(x, whole), coefficients)
    mask, as_set = ir.Constant(ir.IntType(16), 0xFFFF), ir.Constant(I32, 4)
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    return instruction(builder, name, [p, whole, p, mask, as_set])


def instruction(builder: Any, name: str, args: Sequence[Any], result: Any = None) -> Any:
    """What an instruction gives that LLVM knows by name; None: of its first argument's type."""
    kind = ir.FunctionType(result or args[0].type, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def look_up(builder: Any, table: Sequence[float], places: Any) -> Any:
    """Entries of a table of sixteen, by a vector of sixteen int32 from 0 to 15, as float32.

    With `UNIT.table_lanes` of sixteen the bits above the lowest four of a place may be anything.
    """
    if UNIT.table_lanes == LANES:
        entries = ir.Constant(floats(), [float(entry) for entry in table])
        return instruction(builder, "llvm.x86.avx512.permvar.sf.512", [entries, places])
    if UNIT.table_lanes == LANES // 2:
        return _look_up_halves(builder, table, places)
    return _chosen(builder, [constant(floats(), entry) for entry in table], places)


def look_up_bytes(builder: Any, table: Sequence[int], places: Any) -> Any:
    """As `look_up` for each byte of int32 lanes: whole numbers of eight bits."""
    if UNIT.looks_up_bytes and places.type.count in (8, 16):
        kind = ir.VectorType(BYTE, 4 * places.type.count)
        entries = ir.Constant(kind, [table[i % 16] & 0xFF for i in range(kind.count)])
        name = {8: "llvm.x86.avx2.pshuf.b", 16: "llvm.x86.avx512.pshuf.b.512"}
        args = [entries, builder.bitcast(places, kind)]
        found = instruction(builder, name[places.type.count], args)
        return builder.bitcast(found, places.type)
    total = constant(places.type, 0)
    for bit in range(0, 32, 8):
        entries = [constant(places.type, (entry & 0xFF) << bit) for entry in table]
        shifted = builder.lshr(places, constant(places.type, bit))
        total = builder.or_(total, _chosen(builder, entries, shifted))
    return total


def _chosen(builder: Any, entries: list[Any], places: Any) -> Any:
    """One of sixteen vectors in each lane, by the lowest four bits of its place."""
    for bit in range(4):
        mask = constant(places.type, 1 << bit)
        is_set = builder.icmp_signed("!=", builder.and_(places, mask), constant(places.type, 0))
        pairs = zip(entries[::2], entries[1::2], strict=True)
        entries = [builder.select(is_set, second, first) for first, second in pairs]
    return entries[0]


def _look_up_halves(builder: Any, table: Sequence[float], places: Any) -> Any:
    """With an instruction for eight entries and lanes, which reads three bits of a place."""
    half = LANES // 2
    halves = [
        ir.Constant(floats(half), [float(entry) for entry in part])
        for part in (table[:half], table[half:])
    ]
    found = []
    for first in (0, half):
        lanes = ir.Constant(ir.VectorType(I32, half), list(range(first, first + half)))
        part = builder.shuffle_vector(places, places, lanes)
        low, high = (instruction(builder, "llvm.x86.avx2.permps", [t, part]) for t in halves)
        is_high = builder.icmp_signed(">=", part, constant(part.type, half))
        found.append(builder.select(is_high, high, low))
    every = ir.Constant(ir.VectorType(I32, LANES), list(range(LANES)))
    return builder.shuffle_vector(*found, every)


def store_rounded(builder: Any, paired: bool, value: Any, target: Any) -> Any:
    """Write a vector of float32, as bfloat16 if paired; returns what was written, as float32."""
    if not paired:
        store_vector(builder, value, target)
        return value
    if UNIT.pairs:
        bits = builder.fptrunc(value, ir.VectorType(_BFLOAT, value.type.count))
        bits = builder.bitcast(bits, ir.VectorType(ir.IntType(16), value.type.count))
    else:
        bits = rounded(builder, value)
    store_vector(builder, bits, target)
    return widened(builder, bits)


def rounded_pairs(builder: Any, first: Any, second: Any) -> Any:
    """Two vectors of float32, as bfloat16 in pairs: int32, first's lanes two by two, then second's.

    first, second: [LANES]. With `UNIT.pairs` alone.
    """
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    bits = instruction(builder, name, [second, first], ir.VectorType(_BFLOAT, 2 * LANES))
    return builder.bitcast(bits, ir.VectorType(I32, LANES))


def rounded_in_place(builder: Any, value: Any) -> Any:
    """A vector of float32, finite and at least 2⁻¹¹⁰ or 0, rounded to bfloat16's eight bits.

    (1 - 2¹⁶) times it keeps no bits of what is below, and is rounded to nearest, ties to even; so
    is the sum with 2¹⁶ times it, where nothing more is rounded. A zero loses its sign.
    """
    raised = builder.fmul(value, constant(value.type, 1 - 2.0**16))
    return fused(builder, value, constant(value.type, 2.0**16), raised)


def combine_lanes(builder: Any, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """One number from a vector whose lanes are a power of two: halves with halves."""
    width = value.type.count // 2
    while width:
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, width), part))
            for part in (list(range(width)), list(range(width, 2 * width)))
        )
        value = combine(low, high)
        width //= 2
    return builder.extract_element(value, ir.Constant(I32, 0))


def pointer(builder: Any, address: Any) -> Any:
    """To groups, or to anything else of four bytes."""
    return builder.inttoptr(address, I32.as_pointer())


def after(builder: Any, base: Any, offset: Any, constant: int) -> Any:
    return builder.gep(base, [builder.add(offset, index(constant))])


def row_pointers(builder: Any, start: Any, stride: Any, count: int) -> list[Any]:
    """Pointers to the first `count` rows."""
    return [builder.gep(start, [builder.mul(stride, index(r))]) for r in range(count)]
