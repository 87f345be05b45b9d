"""The nearest codes of a vector under its scale; where chunks are paths, those of the nearest ones:
see `codecs.trellis`.

chunk by chunk    of each subset the nearest level of every number, and what it costs
several chunks    the path of least cost, and so the subset of every number
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from pagoda.kernels.cpu.cheapest_paths import cheapest_paths
from pagoda.kernels.cpu.nearest_levels import Search, nearest
from pagoda.kernels.cpu.number import constant, emitted
from pagoda.kernels.cpu.vector import (
    BYTE,
    F32,
    floats,
    index,
    spread,
    store_vector,
)
from pagoda.kernels.cpu.vector_chunks import chunk_of
from pagoda.kernels.vector_code import CHUNK, SUBSET_STEPS, VectorCode

_STEPS = ir.IntType(CHUNK)
_TOGETHER = 4
"""Chunks whose paths are found side by side: each sum waits for those before it."""


class _Subsets(NamedTuple):
    """Of each of four subsets, [16]: which of its levels is nearest, int32, and its cost."""

    places: list[Any]
    costs: list[Any]


@emitted
def nearest_codes(
    typing: Any, x: Any, codes: Any, factor: Any, weights: Any, levels: Any, bounds: Any, code: Any
) -> Any:
    """Write the codes that are nearest to x · factor, as whole numbers in [head_size] float32: of
    the nearest path, or each number's own.

    x: [head_size] float32. weights: likewise, of squared errors. levels, int8, and bounds, float32:
    tables, bounds as trees. code: of a `VectorCode`, a constant. What is no number gets some code.
    """
    vector_code = VectorCode.of_text(code.literal_value)
    chunks: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for chunk, width in enumerate(vector_code.widths):
        chunks[vector_code.is_path(width)].append((chunk, width))
    size = types.intp

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[1], F32.as_pointer())
        times = spread(builder, args[2], CHUNK)
        tables = (
            builder.inttoptr(args[4], BYTE.as_pointer()),
            builder.inttoptr(args[5], F32.as_pointer()),
        )

        def scaled(chunk: int) -> Any:
            return builder.fmul(chunk_of(builder, args[0], chunk), times)

        def store(chunk: int, codes: Any) -> None:
            numbers = builder.sitofp(codes, floats(CHUNK))
            store_vector(builder, numbers, builder.gep(target, [index(chunk * CHUNK)]))

        def subsets(chunk: int, width: int) -> _Subsets:
            weight = chunk_of(builder, args[3], chunk)
            return _of_subsets(builder, scaled(chunk), weight, tables, vector_code, width)

        for chunk, width in chunks[False]:
            first = vector_code.table_place(width)
            search = Search(builder, *tables, first, 2**width)
            [(below, _)] = nearest([search], [scaled(chunk)])
            store(chunk, below)
        paths = chunks[True]
        for first in range(0, len(paths), _TOGETHER):
            part = paths[first : first + _TOGETHER]
            found = [subsets(*each) for each in part]
            cheapest = cheapest_paths(builder, [each.costs for each in found])
            for (chunk, _), each, path in zip(part, found, cheapest, strict=True):
                store(chunk, _codes(builder, each.places, path))
        return context.get_dummy_value()

    return types.void(size, size, types.float32, size, size, size, code), emit


def _of_subsets(
    builder: Any, values: Any, weight: Any, tables: tuple[Any, Any], code: VectorCode, width: int
) -> _Subsets:
    count, places, costs = 2 ** (width - 1), [], []
    firsts = [code.table_place(width) + steps * count for steps in SUBSET_STEPS]
    searches = [Search(builder, *tables, first, count) for first in firsts]
    for place, level in nearest(searches, [values] * len(searches)):
        error = builder.fsub(values, level)
        places.append(place)
        costs.append(builder.fmul(builder.fmul(error, error), weight))
    return _Subsets(places, costs)


def _codes(builder: Any, places: Sequence[Any], path: Any) -> Any:
    """Codes, [16] int32, of the path: its steps, and above them which level of the subset."""

    def before(steps: int) -> Any:
        """Of each number, the step so many numbers before it."""
        turned = builder.shl(path, ir.Constant(_STEPS, steps))
        return builder.or_(turned, builder.lshr(path, ir.Constant(_STEPS, CHUNK - steps)))

    def of_numbers(bits: Any) -> Any:
        return builder.bitcast(bits, ir.VectorType(ir.IntType(1), CHUNK))

    is_odd, is_high = of_numbers(before(1)), of_numbers(builder.xor(path, before(2)))
    low, high = (builder.select(is_odd, places[first + 1], places[first]) for first in (0, 2))
    place = builder.select(is_high, high, low)
    own = builder.zext(of_numbers(path), place.type)
    return builder.or_(builder.shl(place, constant(place.type, 1)), own)
