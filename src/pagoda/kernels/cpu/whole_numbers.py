"""Rounding to whole numbers, in steps of the largest: for functions marked `emitted`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import F32, I32, LANES, combine_lanes, instruction, spread

WHOLE = ir.VectorType(I32, LANES)


def largest_size(builder: Any, numbers: Sequence[Any]) -> Any:
    """The largest size of any number of some vectors; one that is none is larger than all."""
    sizes = [
        builder.and_(builder.bitcast(each, WHOLE), constant(WHOLE, 0x7FFFFFFF)) for each in numbers
    ]

    def larger(a: Any, b: Any) -> Any:
        return builder.select(builder.icmp_signed(">", a, b), a, b)

    return builder.bitcast(combine_lanes(builder, reduce(larger, sizes), larger), F32)


def rounded_whole(builder: Any, numbers: Any, factor: Any) -> Any:
    """[16] int32: a vector times a float32, to nearest, ties to even."""
    scaled = builder.fmul(numbers, spread(builder, factor, LANES))
    return builder.fptosi(instruction(builder, f"llvm.roundeven.v{LANES}f32", [scaled]), WHOLE)
