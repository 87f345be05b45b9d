"""Products of bytes, four added up in each lane, by what a CPU has for them.

Codes of weights are one factor, unsigned where they are raised by their bias, and those of
activations, -127 to 127, the other. Sums are whole numbers, so every way gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import UNIT, instruction

BYTE, HALF = ir.IntType(8), ir.IntType(16)
MOST_CODE = 127
"""Of an activation."""
_MOST_SUM = 32767


def summed(
    builder: Any, codes: Sequence[Any], others: Sequence[Callable[[], Any]], most: int, signed: bool
) -> Any:
    """In each lane of int32 the sum of the products of all bytes of a lane.

    codes: of weights, vectors of int32 with four bytes in a lane, at most `most` in size, of two's
    complement if `signed`; others: load the codes of activations, vectors alike.
    """
    ways = {4: _by_fours, 2: _by_pairs, 0: _one_by_one}
    return ways[UNIT.byte_products](builder, codes, others, most, signed)


def _by_fours(
    builder: Any, codes: Sequence[Any], others: Sequence[Callable[[], Any]], most: int, signed: bool
) -> Any:
    """AVX-512 VNNI or AVX-VNNI: unsigned times signed, four products added to a sum at once."""
    assert not signed, "codes are raised by their bias"
    total = constant(codes[0].type, 0)
    for code, other in zip(codes, others, strict=True):
        name = f"llvm.x86.avx512.vpdpbusd.{32 * code.type.count}"
        factors = [_as_bytes(builder, code), _as_bytes(builder, other())]
        total = instruction(builder, name, [total, *factors])
    return total


def _by_pairs(
    builder: Any, codes: Sequence[Any], others: Sequence[Callable[[], Any]], most: int, signed: bool
) -> Any:
    """AVX2: unsigned times signed, two products added up in 16 bits, which hold a few such sums."""
    at_once = max(1, _MOST_SUM // (2 * MOST_CODE * most))
    totals = []
    for first in range(0, len(codes), at_once):
        pairs = [
            _pairs(builder, _as_bytes(builder, code), _as_bytes(builder, other()), signed)
            for code, other in zip(
                codes[first : first + at_once], others[first : first + at_once], strict=True
            )
        ]
        halves = reduce(builder.add, pairs)
        ones = constant(halves.type, 1)
        kind = codes[0].type
        totals.append(instruction(builder, "llvm.x86.avx2.pmadd.wd", [halves, ones], kind))
    return reduce(builder.add, totals)


def _pairs(builder: Any, code: Any, other: Any, signed: bool) -> Any:
    if signed:  # |code| · (other with the sign of code)
        bytes_of = code.type
        other = instruction(builder, "llvm.x86.avx2.psign.b", [other, code])
        at_zero = ir.Constant(ir.IntType(1), 0)
        code = instruction(builder, f"llvm.abs.v{bytes_of.count}i8", [code, at_zero])
    halves = ir.VectorType(HALF, code.type.count // 2)
    return instruction(builder, "llvm.x86.avx2.pmadd.ub.sw", [code, other], halves)


def _one_by_one(
    builder: Any, codes: Sequence[Any], others: Sequence[Callable[[], Any]], most: int, signed: bool
) -> Any:
    """Without such instructions: byte by byte of every lane."""
    total = constant(codes[0].type, 0)
    for code, load in zip(codes, others, strict=True):
        other = load()
        for byte in range(4):
            factors = _byte(builder, code, byte, signed), _byte(builder, other, byte, True)
            total = builder.add(total, builder.mul(*factors))
    return total


def _byte(builder: Any, lanes: Any, byte: int, signed: bool) -> Any:
    """One byte of each lane as a whole number."""
    above = builder.shl(lanes, constant(lanes.type, 24 - 8 * byte))
    by = constant(lanes.type, 24)
    return builder.ashr(above, by) if signed else builder.lshr(above, by)


def _as_bytes(builder: Any, lanes: Any) -> Any:
    return builder.bitcast(lanes, ir.VectorType(BYTE, 4 * lanes.type.count))
