"""A row's softmax within one split of its context: its highest score, then powers of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, types
from numba.core import cgutils

from pagoda.kernels.cpu.number import COARSE, PRECISE, constant, emitted, fused
from pagoda.kernels.cpu.vector import (
    F32,
    I32,
    LANES,
    combine_lanes,
    floats,
    index,
    load_vector,
    powers_of_two,
    spread,
    store_rounded,
    store_vector,
)

WIDTH = 4 * LANES
"""Scores come in multiples of this."""
LOWEST = np.float32(-1e30)
"""The score of what does not count: below every other, and its weight is 0."""


@emitted
def soften(
    typing: Any, scores: Any, weights: Any, count: Any, begin: Any, end: Any, scale: Any,
    highest: Any, mass: Any, paired: Any,
) -> Any:  # fmt: skip
    """weights[t] = 2 ** (scores[t] · scale - highest) for t = begin … end - 1, 0 for all others.

    By addresses; for kernels only. scores: [count] float32, changed; count: a multiple of `WIDTH`.
    weights: [count] bfloat16 if `paired`, a constant, else float32. highest, mass: float32 that are
    written: the highest score times scale, and the sum of the weights as written.
    """
    terms = COARSE if paired.literal_value else PRECISE
    size = types.intp
    signature = types.void(size, size, size, size, size, float32, size, size, paired)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        is_paired = paired.literal_value
        start, marks, total = (builder.inttoptr(args[i], F32.as_pointer()) for i in (0, 6, 7))
        target = builder.inttoptr(args[1], (ir.IntType(16) if is_paired else F32).as_pointer())
        count, begin, end, scale = args[2:6]
        partial = builder.or_(
            builder.icmp_signed(">", begin, index(0)), builder.icmp_signed("<", end, count)
        )
        with builder.if_then(partial):
            _mask(builder, start, count, begin, end)
        top = builder.fmul(_highest(builder, start, count), scale)
        mass = _weigh(builder, is_paired, start, target, count, scale, top, terms)
        seen = builder.icmp_signed("<", begin, end)
        builder.store(builder.select(seen, top, constant(top.type, float(LOWEST))), marks)
        builder.store(mass, total)
        with builder.if_then(builder.not_(seen)):
            _clear(builder, is_paired, target, count)
            builder.store(constant(mass.type, 0.0), total)
        return context.get_dummy_value()

    return signature, emit


def _mask(builder: Any, start: Any, count: Any, begin: Any, end: Any) -> None:
    """Make scores before `begin` and from `end` on the lowest."""
    lanes = ir.Constant(ir.VectorType(I32, LANES), list(range(LANES)))
    begin, end = (builder.trunc(value, I32) for value in (begin, end))
    first, last = (spread(builder, value, LANES) for value in (begin, end))
    with cgutils.for_range_slice(builder, index(0), count, index(LANES)) as (place, _):
        columns = builder.add(spread(builder, builder.trunc(place, I32), LANES), lanes)
        inside = builder.and_(
            builder.icmp_signed(">=", columns, first), builder.icmp_signed("<", columns, last)
        )
        pointer = builder.gep(start, [place])
        score = load_vector(builder, pointer, floats())
        store_vector(
            builder, builder.select(inside, score, constant(floats(), float(LOWEST))), pointer
        )


def _highest(builder: Any, start: Any, count: Any) -> Any:
    """Largest of the scores."""

    def pick(x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", x, y), x, y)

    cells = _cells(builder, float(LOWEST))
    with cgutils.for_range_slice(builder, index(0), count, index(WIDTH)) as (place, _):
        for number, cell in enumerate(cells):
            column = builder.add(place, index(number * LANES))
            read = load_vector(builder, builder.gep(start, [column]), floats())
            builder.store(pick(builder.load(cell), read), cell)
    return combine_lanes(builder, _together(builder, cells, pick), pick)


def _weigh(
    builder: Any, paired: bool, start: Any, target: Any, count: Any, scale: Any, highest: Any,
    terms: int,
) -> Any:  # fmt: skip
    """Write all weights and return their sum: in 64 lanes first, then the lanes in pairs.

    That many more zeros leave the sum's bits as they are.
    """
    factor = spread(builder, scale, LANES)
    offset = spread(builder, builder.fneg(highest), LANES)
    cells = _cells(builder, 0.0)
    with cgutils.for_range_slice(builder, index(0), count, index(WIDTH)) as (place, _):
        for number, cell in enumerate(cells):
            column = builder.add(place, index(number * LANES))
            score = load_vector(builder, builder.gep(start, [column]), floats())
            power = powers_of_two(builder, fused(builder, score, factor, offset), terms)
            written = store_rounded(builder, paired, power, builder.gep(target, [column]))
            builder.store(builder.fadd(builder.load(cell), written), cell)
    return combine_lanes(builder, _together(builder, cells, builder.fadd), builder.fadd)


def _clear(builder: Any, paired: bool, target: Any, count: Any) -> None:
    with cgutils.for_range_slice(builder, index(0), count, index(LANES)) as (place, _):
        store_rounded(builder, paired, constant(floats(), 0.0), builder.gep(target, [place]))


def _cells(builder: Any, value: float) -> list[Any]:
    """Four vectors that grow side by side, so that none has to wait for itself."""
    start = constant(floats(), value)
    return [cgutils.alloca_once_value(builder, start) for _ in range(WIDTH // LANES)]


def _together(builder: Any, cells: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    first, second, third, fourth = (builder.load(cell) for cell in cells)
    return combine(combine(first, second), combine(third, fourth))
