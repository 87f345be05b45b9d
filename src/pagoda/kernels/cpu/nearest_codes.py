"""The nearest codes of a vector under its scale; where chunks are paths, all in registers, those of
the nearest paths: see `codecs.trellis`.

chunk by chunk    of each subset the nearest level of every number, and what it costs
number by number  sixteen sums in a register, by the state that a path began in and its own:
                  each is the lesser of two sums before it and a cost
backwards         the steps of the path that ends where it began
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from pagoda.kernels.cpu.nearest_levels import Search
from pagoda.kernels.cpu.number import constant, emitted
from pagoda.kernels.cpu.vector import (
    BYTE,
    F32,
    I32,
    floats,
    index,
    lane_numbers,
    load_vector,
    spread,
    store_vector,
)
from pagoda.kernels.vector_code import CHUNK, SUBSET_STEPS, VectorCode

_STEPS = ir.IntType(CHUNK)
_STATES = 4
_TOGETHER = 4
"""Chunks whose paths are found side by side: each sum waits for those before it."""
_PAST = 1e30
"""More than any path costs."""


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
        source, target, weight_of = (builder.inttoptr(args[i], F32.as_pointer()) for i in (0, 1, 3))
        times = spread(builder, args[2], CHUNK)
        tables = (
            builder.inttoptr(args[4], BYTE.as_pointer()),
            builder.inttoptr(args[5], F32.as_pointer()),
        )

        def of_chunk(vector: Any, chunk: int) -> Any:
            return load_vector(builder, builder.gep(vector, [index(chunk * CHUNK)]), floats(CHUNK))

        def scaled(chunk: int) -> Any:
            return builder.fmul(of_chunk(source, chunk), times)

        def store(chunk: int, codes: Any) -> None:
            numbers = builder.sitofp(codes, floats(CHUNK))
            store_vector(builder, numbers, builder.gep(target, [index(chunk * CHUNK)]))

        def subsets(chunk: int, width: int) -> _Subsets:
            weight = of_chunk(weight_of, chunk)
            return _of_subsets(builder, scaled(chunk), weight, tables, vector_code, width)

        for chunk, width in chunks[False]:
            first = vector_code.table_place(width)
            below, _ = Search(builder, *tables, first, 2**width).nearest(scaled(chunk))
            store(chunk, below)
        paths = chunks[True]
        for first in range(0, len(paths), _TOGETHER):
            part = paths[first : first + _TOGETHER]
            found = [subsets(*each) for each in part]
            cheapest = _cheapest(builder, [each.costs for each in found])
            for (chunk, _), each, path in zip(part, found, cheapest, strict=True):
                store(chunk, _codes(builder, each.places, path))
        return context.get_dummy_value()

    return types.void(size, size, types.float32, size, size, size, code), emit


def _of_subsets(
    builder: Any, values: Any, weight: Any, tables: tuple[Any, Any], code: VectorCode, width: int
) -> _Subsets:
    count, places, costs = 2 ** (width - 1), [], []
    for steps in SUBSET_STEPS:
        first = code.table_place(width) + steps * count
        place, level = Search(builder, *tables, first, count).nearest(values)
        error = builder.fsub(values, level)
        places.append(place)
        costs.append(builder.fmul(builder.fmul(error, error), weight))
    return _Subsets(places, costs)


def _cheapest(builder: Any, costs: Sequence[Sequence[Any]]) -> list[Any]:
    """The path of each chunk, [16] bits: that of least cost among those that end where they began.

    costs: of each chunk, of each subset, [16].
    """
    by_number = [_by_number(builder, each) for each in costs]
    begin = [0.0 if i // _STATES == i % _STATES else _PAST for i in range(CHUNK)]
    sums = [ir.Constant(floats(CHUNK), begin) for _ in costs]
    came: list[list[Any]] = [[] for _ in costs]
    for number in range(CHUNK):
        for chunk, own in enumerate(by_number):
            sums[chunk], is_second = _step(builder, sums[chunk], own[number // 4], number % 4)
            came[chunk].append(builder.bitcast(is_second, _STEPS))
    return [_backwards(builder, *each) for each in zip(sums, came, strict=True)]


def _by_number(builder: Any, costs: Sequence[Any]) -> list[Any]:
    """Four vectors with the costs of all subsets of four numbers each, one after the other."""
    pairs = [
        builder.shuffle_vector(
            low, high, lane_numbers([first + i // 2 + CHUNK * (i % 2) for i in range(CHUNK)])
        )
        for first in (0, CHUNK // 2)
        for low, high in ((costs[0], costs[1]), (costs[2], costs[3]))
    ]
    return [
        builder.shuffle_vector(
            low,
            high,
            lane_numbers(
                [first + 2 * (i // 4) + i % 2 + CHUNK * (i % 4 // 2) for i in range(CHUNK)]
            ),
        )
        for low, high in ((pairs[0], pairs[1]), (pairs[2], pairs[3]))
        for first in (0, CHUNK // 2)
    ]


def _step(builder: Any, sums: Any, costs: Any, place: int) -> tuple[Any, Any]:
    """The sums after a number, by first state and state; where the second way there is the cheaper.

    costs: from lane 4 · place on, of the number's subsets.
    """
    ways = []
    for before in (0, 1):
        came, subset = [], []
        for lane in range(CHUNK):
            first, state = divmod(lane, _STATES)
            own, last = state & 1, state >> 1
            came.append(first * _STATES + last + 2 * before)
            subset.append(4 * place + last + 2 * (own ^ before))
        ways.append(
            builder.fadd(
                builder.shuffle_vector(sums, sums, lane_numbers(came)),
                builder.shuffle_vector(costs, costs, lane_numbers(subset)),
            )
        )
    is_second = builder.fcmp_ordered("<", ways[1], ways[0])
    return builder.select(is_second, ways[1], ways[0]), is_second


def _backwards(builder: Any, sums: Any, came: Sequence[Any]) -> Any:
    """The steps of the cheapest path."""

    def number(value: int) -> Any:
        return ir.Constant(I32, value)

    least = builder.extract_element(sums, number(0))
    first = number(0)
    for state in range(1, _STATES):
        own = builder.extract_element(sums, number(state * _STATES + state))
        is_less = builder.fcmp_ordered("<", own, least)
        least = builder.select(is_less, own, least)
        first = builder.select(is_less, number(state), first)
    start, state, path = builder.mul(first, number(_STATES)), first, number(0)
    for place in reversed(range(CHUNK)):
        own = builder.and_(state, number(1))
        path = builder.or_(path, builder.shl(own, number(place)))
        ways = builder.zext(came[place], I32)
        second = builder.and_(builder.lshr(ways, builder.add(start, state)), number(1))
        state = builder.or_(builder.lshr(state, number(1)), builder.shl(second, number(1)))
    return builder.trunc(path, _STEPS)


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
