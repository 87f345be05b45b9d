"""The scale of a vector whose errors have weights: the best of a few ufloat8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from pagoda.kernels.cpu.nearest_levels import Search, nearest, search_of
from pagoda.kernels.cpu.number import constant, emitted, fused
from pagoda.kernels.cpu.ufloat8 import from_ufloat8
from pagoda.kernels.cpu.vector import (
    BYTE,
    F32,
    I32,
    combine_lanes,
    floats,
    index,
    load_vector,
    spread,
)
from pagoda.kernels.vector_code import CHUNK, SCALE_REACH, VectorCode

_TRIES = 2 * SCALE_REACH + 1
_TOGETHER = 4
"""Chunks that are searched side by side, under all scales: each step of a search waits for the one
before it."""


@emitted
def nearest_scale(
    typing: Any, x: Any, middle: Any, weights: Any, levels: Any, bounds: Any, code: Any
) -> Any:
    """The ufloat8 with the least Σ weight · (x - scale · level)², of those around `middle`; of
    levels those that are nearest to x / scale. Nothing is written.

    x, weights: [head_size] float32. The rest as `nearest_levels` takes it. Where no sum is a
    number, it is `middle`.
    """
    widths = VectorCode.of_text(code.literal_value).widths
    size = types.intp

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, counts = (builder.inttoptr(args[i], F32.as_pointer()) for i in (0, 2))
        searches = [search_of(builder, args[3], args[4], width) for width in widths]
        tried = _around(builder, args[1])
        scales = from_ufloat8(builder, builder.trunc(tried, ir.VectorType(BYTE, _TRIES)))
        is_zero = builder.icmp_signed("==", tried, constant(tried.type, 0))
        inverses = builder.fdiv(constant(scales.type, 1.0), scales)
        inverses = builder.select(is_zero, constant(scales.type, 0.0), inverses)
        pairs = [
            [builder.extract_element(each, ir.Constant(I32, i)) for each in (scales, inverses)]
            for i in range(_TRIES)
        ]
        errors = _weighted_errors(builder, searches, source, counts, pairs)
        best, least = args[1], ir.Constant(F32, float("inf"))
        for i, error in enumerate(errors):
            is_less = builder.fcmp_ordered("<", error, least)
            code = builder.zext(builder.extract_element(tried, ir.Constant(I32, i)), best.type)
            best = builder.select(is_less, code, best)
            least = builder.select(is_less, error, least)
        return best

    return size(size, size, size, size, size, code), emit


def _around(builder: Any, middle: Any) -> Any:
    """Codes of ufloat8, [`_TRIES`] int32."""
    kind = ir.VectorType(I32, _TRIES)
    steps = ir.Constant(kind, list(range(-SCALE_REACH, SCALE_REACH + 1)))
    found = builder.add(spread(builder, builder.trunc(middle, I32), _TRIES), steps)
    for sign, limit in (("<", 0), (">", 255)):
        end = constant(kind, limit)
        found = builder.select(builder.icmp_signed(sign, found, end), end, found)
    return found


def _weighted_errors(
    builder: Any, searches: Sequence[Search], source: Any, counts: Any, scales: Sequence[Any]
) -> list[Any]:
    """Under some scales, each beside its inverse."""
    totals = [constant(floats(CHUNK), 0.0) for _ in scales]
    wide = [[spread(builder, each, CHUNK) for each in pair] for pair in scales]
    for first in range(0, len(searches), _TOGETHER):
        chunks = range(first, min(first + _TOGETHER, len(searches)))
        read = [
            [
                load_vector(builder, builder.gep(each, [index(chunk * CHUNK)]), floats(CHUNK))
                for chunk in chunks
            ]
            for each in (source, counts)
        ]
        scaled = [builder.fmul(value, inverse) for _, inverse in wide for value in read[0]]
        found = iter(nearest([searches[i] for i in chunks] * len(wide), scaled))
        for i, (scale, _) in enumerate(wide):
            negative = builder.fneg(scale)
            for value, weight in zip(*read, strict=True):
                error = fused(builder, negative, next(found)[1], value)
                totals[i] = fused(builder, builder.fmul(weight, error), error, totals[i])
    return [combine_lanes(builder, total, builder.fadd) for total in totals]
