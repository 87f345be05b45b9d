"""A row's softmax within one split of its context: its highest score, then powers of two."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, njit
from numba.core import cgutils

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.number import COARSE, PRECISE, constant, emitted, fused, power_of_two
from pagoda.kernels.cpu.vector import (
    LANES,
    combine_lanes,
    floats,
    index,
    is_paired,
    load_vector,
    spread,
    store_rounded,
)

LOWEST = np.float32(-1e30)
"""Of a score that does not count: below every other, and its weight is 0."""


@njit(error_model="numpy")
def soften(
    scores: Array, weights: Array, begin: int, end: int, scale: np.float32
) -> tuple[np.float32, np.float32]:
    """weights[t] = 2 ** (scores[t] · scale - highest) for t = begin … end - 1, 0 for all others.

    scores, weights: 1-D, as long as each other, a multiple of 16; scores are float32 and changed,
    weights of the dtype they are used in. Returns highest, and the sum of the weights as written.
    """
    if begin >= end:
        weights[:] = 0
        return LOWEST, np.float32(0.0)
    scores[:begin] = LOWEST
    scores[end:] = LOWEST
    highest = _highest(scores) * scale
    return highest, _weigh(scores, weights, scale, highest)


@emitted
def _highest(typing: Any, scores: Any) -> Any:
    """Largest of the scores."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, count = _extent(context, builder, scores, args[0])

        def pick(x: Any, y: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)

        cell = cgutils.alloca_once_value(builder, load_vector(builder, start, floats()))
        lanes = index(LANES)
        with cgutils.for_range_slice(builder, lanes, count, lanes) as (place, _):
            read = load_vector(builder, builder.gep(start, [place]), floats())
            builder.store(pick(builder.load(cell), read), cell)
        return combine_lanes(builder, builder.load(cell), pick)

    return float32(scores), emit


@emitted
def _weigh(typing: Any, scores: Any, weights: Any, scale: Any, highest: Any) -> Any:
    """Write all weights and return their sum: lane by lane first, then the lanes in pairs.

    Sixteen more zeros leave the sum's bits as they are.
    """
    terms = COARSE if is_paired(weights.dtype) else PRECISE

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, count = _extent(context, builder, scores, args[0])
        target, _ = _extent(context, builder, weights, args[1])
        factor = spread(builder, args[2], LANES)
        offset = spread(builder, builder.fneg(args[3]), LANES)
        cell = cgutils.alloca_once_value(builder, constant(floats(), 0.0))
        with cgutils.for_range_slice(builder, index(0), count, index(LANES)) as (place, _):
            score = load_vector(builder, builder.gep(start, [place]), floats())
            power = power_of_two(builder, fused(builder, score, factor, offset), terms)
            written = store_rounded(builder, weights.dtype, power, builder.gep(target, [place]))
            builder.store(builder.fadd(builder.load(cell), written), cell)
        return combine_lanes(builder, builder.load(cell), builder.fadd)

    return float32(scores, weights, float32, float32), emit


def _extent(context: Any, builder: Any, kind: Any, value: Any) -> tuple[Any, Any]:
    """Of a contiguous 1-D array: where it starts and how many numbers it has."""
    array = context.make_array(kind)(context, builder, value)
    return array.data, builder.extract_value(array.shape, 0)
