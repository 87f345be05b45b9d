"""The scale of a vector whose errors have weights: the best of a few ufloat8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    spread,
)
from pagoda.kernels.cpu.vector_chunks import chunk_of
from pagoda.kernels.vector_code import CHUNK, SCALE_REACH, VectorCode

_NUM_TRIES = 2 * SCALE_REACH + 1
_TOGETHER = 4
"""Chunks that are searched side by side, under all scales: each step of a search waits for the one
before it."""


class _Try(NamedTuple):
    """A scale, in every lane of [16] float32."""

    scale: Any
    inverse: Any


@emitted
def nearest_scale(
    typing: Any, x: Any, middle: Any, weights: Any, levels: Any, bounds: Any, code: Any
) -> Any:
    """The ufloat8 with the least Σ weight · (x - scale · level)², of those up to `SCALE_REACH` away
    from the code `middle`; of levels those that are nearest to x / scale. Nothing is written.

    x, weights: [head_size] float32. The rest as `nearest_levels` takes it. Where no sum is a
    number, it is `middle`.
    """
    widths = VectorCode.of_text(code.literal_value).widths
    size = types.intp

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        searches = [search_of(builder, args[3], args[4], width) for width in widths]
        codes = _around(builder, args[1])
        errors = _weighted_errors(builder, searches, args[0], args[2], _tries(builder, codes))
        best, least = args[1], ir.Constant(F32, float("inf"))
        for i, error in enumerate(errors):
            is_less = builder.fcmp_ordered("<", error, least)
            code = builder.zext(builder.extract_element(codes, ir.Constant(I32, i)), best.type)
            best = builder.select(is_less, code, best)
            least = builder.select(is_less, error, least)
        return best

    return size(size, size, size, size, size, code), emit


def _around(builder: Any, middle: Any) -> Any:
    """A code and those around it, [`_NUM_TRIES`] int32: some stand twice at either end."""
    kind = ir.VectorType(I32, _NUM_TRIES)
    steps = ir.Constant(kind, list(range(-SCALE_REACH, SCALE_REACH + 1)))
    found = builder.add(spread(builder, builder.trunc(middle, I32), _NUM_TRIES), steps)
    for sign, limit in (("<", 0), (">", 255)):
        end = constant(kind, limit)
        found = builder.select(builder.icmp_signed(sign, found, end), end, found)
    return found


def _tries(builder: Any, codes: Any) -> list[_Try]:
    """The scales of codes, which are 0 where their inverses are."""
    scales = from_ufloat8(builder, builder.trunc(codes, ir.VectorType(BYTE, _NUM_TRIES)))
    is_zero = builder.icmp_signed("==", codes, constant(codes.type, 0))
    inverses = builder.fdiv(constant(scales.type, 1.0), scales)
    inverses = builder.select(is_zero, constant(scales.type, 0.0), inverses)

    def of(vector: Any, i: int) -> Any:
        return spread(builder, builder.extract_element(vector, ir.Constant(I32, i)), CHUNK)

    return [_Try(of(scales, i), of(inverses, i)) for i in range(_NUM_TRIES)]


def _weighted_errors(
    builder: Any, searches: Sequence[Search], x: Any, weights: Any, tries: Sequence[_Try]
) -> list[Any]:
    """Σ weight · (x - scale · level)² of each try.

    searches: of each chunk; x, weights: addresses of [head_size] float32.
    """
    totals = [constant(floats(CHUNK), 0.0) for _ in tries]
    for first in range(0, len(searches), _TOGETHER):
        part = searches[first : first + _TOGETHER]
        values, counts = (
            [chunk_of(builder, each, first + i) for i in range(len(part))] for each in (x, weights)
        )
        scaled = [builder.fmul(value, each.inverse) for each in tries for value in values]
        levels = [level for _, level in nearest([*part] * len(tries), scaled)]
        for i, each in enumerate(tries):
            negative, own = builder.fneg(each.scale), levels[i * len(part) : (i + 1) * len(part)]
            for value, count, level in zip(values, counts, own, strict=True):
                error = fused(builder, negative, level, value)
                totals[i] = fused(builder, builder.fmul(count, error), error, totals[i])
    return [combine_lanes(builder, total, builder.fadd) for total in totals]
