"""Products of bytes, four added up in each lane, by what a CPU has for them.

Codes of weights are one factor, those of activations, -127 to 127, the other. Sums are whole
numbers: they do not depend on how they are taken. What they are sums of does: some instructions
want codes of weights that are not below zero (`TAKES_SIGNED`), and what these are raised by is
taken back in float32, so answers differ in last bits between CPUs.
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


TAKES_SIGNED = UNIT.byte_products == 2
"""Codes of weights of eight bits have to be of two's complement, or else not below zero."""

Loads = Sequence[Callable[[], Any]]


def summed(builder: Any, codes: Sequence[Any], others: Loads, most: int, *, signed: bool) -> Any:
    """In each lane of int32 the sum of the products of all bytes of a lane.

    codes: of weights, vectors of int32 with four bytes in a lane, at most `most` in size, of two's
    complement if `signed`; others: load the codes of activations, vectors alike.
    """
    pairs = list(zip(codes, others, strict=True))
    if TAKES_SIGNED:
        return _by_pairs(builder, pairs, most, signed)
    assert not signed, "codes are raised by their bias"
    return (_by_fours if UNIT.byte_products else _one_by_one)(builder, pairs)


_Factors = Sequence[tuple[Any, Callable[[], Any]]]


def _by_fours(builder: Any, factors: _Factors) -> Any:
    """AVX-512 VNNI or AVX-VNNI: unsigned times signed, four products added to a sum at once."""
    total = constant(factors[0][0].type, 0)
    for code, other in factors:
        total = add_fours(builder, total, code, other())
    return total


def add_fours(builder: Any, total: Any, code: Any, other: Any) -> Any:
    """total + the products of four bytes in each lane of int32; code: unsigned."""
    name = f"llvm.x86.avx512.vpdpbusd.{32 * total.type.count}"
    return instruction(builder, name, [total, code, other])


def _by_pairs(builder: Any, factors: _Factors, most: int, signed: bool) -> Any:
    """AVX2: unsigned times signed, two products added up in 16 bits, which hold a few such sums."""
    at_once = max(1, _MOST_SUM // (2 * MOST_CODE * most))
    kind, totals = factors[0][0].type, []
    for first in range(0, len(factors), at_once):
        halves = reduce(
            builder.add,
            [
                _pairs(builder, _as_bytes(builder, code), _as_bytes(builder, other()), signed)
                for code, other in factors[first : first + at_once]
            ],
        )
        ones = constant(halves.type, 1)
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


def _one_by_one(builder: Any, factors: _Factors) -> Any:
    """Without such instructions: byte by byte of every lane."""
    total = constant(factors[0][0].type, 0)
    for code, load in factors:
        other = load()
        for byte in range(4):
            unsigned = _byte(builder, code, byte, builder.lshr)
            signed = _byte(builder, other, byte, builder.ashr)
            total = builder.add(total, builder.mul(unsigned, signed))
    return total


def _byte(builder: Any, lanes: Any, byte: int, shift: Callable[..., Any]) -> Any:
    """One byte of each lane as a whole number; shift: to the right, with its sign or without."""
    above = builder.shl(lanes, constant(lanes.type, 24 - 8 * byte))
    return shift(above, constant(lanes.type, 24))


def _as_bytes(builder: Any, lanes: Any) -> Any:
    return builder.bitcast(lanes, ir.VectorType(BYTE, 4 * lanes.type.count))
