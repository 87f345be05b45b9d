"""The paths of least cost through a trellis (Viterbi, 1967): see `codecs.trellis`.

Sixteen sums are in a vector, by the state that a path began in and its own. A number adds a step to
all of them: each is then the lesser of two sums before it, with a cost. A state has two lane bits,
the last step's and that of the step before, and the new step takes that of the latter:

    from a like state  its own lane, at the cost of subset 0 or 1, by the last step
    from the other     the lane whose oldest step is another, at the cost of subset 2 or 3

Paths are carried along, a bit a step, so nothing is followed back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.number import constant
from pagoda.kernels.cpu.vector import (
    F32,
    I32,
    floats,
    index,
    lane_numbers,
    load_vector,
    opaque,
    store_vector,
)
from pagoda.kernels.vector_code import CHUNK

_STEPS = ir.IntType(CHUNK)
_PATHS = ir.VectorType(I32, CHUNK)
_STATES = 4
_PAST = 1e30
"""More than any path costs."""


class _Ways(NamedTuple):
    """To each state, by the state that a path began in: [16]."""

    sums: Any
    """Of costs."""
    paths: Any
    """Their steps, a bit each, int32."""


def cheapest_paths(builder: Any, costs: Sequence[Sequence[Any]]) -> list[Any]:
    """The path of each chunk, [16] bits: that of least cost among those that end where they began.

    costs: of each chunk, of each subset, [16] float32. Chunks go side by side: each sum waits for
    those before it.
    """
    kept = [(_Costs(builder, *each[:2]), _Costs(builder, *each[2:])) for each in costs]
    begin = [0.0 if i // _STATES == i % _STATES else _PAST for i in range(CHUNK)]
    ways = [_Ways(ir.Constant(floats(CHUNK), begin), constant(_PATHS, 0)) for _ in costs]
    for number in range(CHUNK):
        for chunk, (alike, other) in enumerate(kept):
            own = alike.of(number), other.of(number)
            ways[chunk] = _step(builder, ways[chunk], own, number)
    return [_least(builder, each) for each in ways]


class _Costs:
    """Those of two subsets, in memory: one instruction reads what a number's step adds."""

    def __init__(self, builder: Any, low: Any, high: Any) -> None:
        """low: where the last step is 0; high: where it is 1."""
        self._builder = builder
        pairs = [_pairs(builder, low, high, first) for first in (0, 2)]
        twice = [_moved(builder, each, (2, 2, 3, 3)) for each in pairs]
        # LLVM must not know what is there, or takes it out of the registers it came from.
        memory = opaque(builder, cgutils.alloca_once(builder, floats(CHUNK), size=4))
        for i, each in enumerate((pairs[0], twice[0], pairs[1], twice[1])):
            store_vector(builder, each, builder.gep(memory, [index(i)]))
        self._start = opaque(builder, builder.bitcast(memory, F32.as_pointer()))

    def of(self, number: int) -> Any:
        """By a lane's last step, [16]."""
        builder, (group, vector) = self._builder, divmod(number, 4)
        source = builder.gep(self._start, [index(vector * CHUNK + group * 4)])
        count = 4 if number % 2 else 2  # as the last step's lane bit is the higher one or not
        read = load_vector(builder, source, floats(count))
        lanes = [lane % count for lane in range(CHUNK)]
        return builder.shuffle_vector(read, read, lane_numbers(lanes))


def _oldest_bit(number: int) -> int:
    """The lane bit of the step that is two before a number's, and then the number's own."""
    return 2 if number % 2 == 0 else 1


def _pairs(builder: Any, low: Any, high: Any, first: int) -> Any:
    """Of each four numbers the costs of two, `first` and the next: low and high in turn."""
    lanes = [i // 4 * 4 + first + i % 4 // 2 + CHUNK * (i % 2) for i in range(CHUNK)]
    return builder.shuffle_vector(low, high, lane_numbers(lanes))


def _moved(builder: Any, vector: Any, places: Sequence[int]) -> Any:
    """Each four lanes from those places among them."""
    lanes = [i // 4 * 4 + places[i % 4] for i in range(CHUNK)]
    return builder.shuffle_vector(vector, vector, lane_numbers(lanes))


def _step(builder: Any, ways: _Ways, costs: tuple[Any, Any], number: int) -> _Ways:
    """The ways after a number, which costs so much from a like state and from another."""
    bit = _oldest_bit(number)
    across = [lane ^ bit for lane in range(_STATES)]
    alike = builder.fadd(ways.sums, costs[0])
    other = builder.fadd(_moved(builder, ways.sums, across), costs[1])
    # None is below zero, so their bits compare as they do, which many CPUs have quicker.
    bits = [builder.bitcast(each, _PATHS) for each in (alike, other)]
    is_other = builder.icmp_signed("<", bits[1], bits[0])
    sums = builder.bitcast(builder.select(is_other, bits[1], bits[0]), floats(CHUNK))
    paths = builder.select(is_other, _moved(builder, ways.paths, across), ways.paths)
    steps = ir.Constant(_PATHS, [1 << number if lane & bit else 0 for lane in range(CHUNK)])
    return _Ways(sums, builder.or_(paths, steps))


def _least(builder: Any, ways: _Ways) -> Any:
    """The path of the cheapest way that ends where it began."""
    least, path = (builder.extract_element(each, ir.Constant(I32, 0)) for each in ways)
    for state in range(1, _STATES):
        lane = ir.Constant(I32, state * _STATES + state)
        own = builder.extract_element(ways.sums, lane)
        is_less = builder.fcmp_ordered("<", own, least)
        least = builder.select(is_less, own, least)
        path = builder.select(is_less, builder.extract_element(ways.paths, lane), path)
    return builder.trunc(path, _STEPS)
