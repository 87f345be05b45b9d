"""A row's softmax within one split of its context: its highest score, then powers of two.

Scores are products with levels of codes where keys are coded, and weights meet those of values: the
scales and offsets of both stand beside, in a row of float32 for each, token by token. What they are
of tokens that do not count may be anything, not a number too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, types
from numba.core import cgutils

from pagoda.kernels.cpu.number import (
    COARSE,
    PRECISE,
    constant,
    emitted,
    fused,
    hyperbolic_tangent,
)
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
SCALE_ROWS = 4
KEY_SCALE, KEY_OFFSET, VALUE_SCALE, VALUE_OFFSET = range(SCALE_ROWS)
"""Rows of scales."""


@emitted
def soften(
    typing: Any, scores: Any, weights: Any, count: Any, begin: Any, end: Any, scale: Any, cap: Any,
    highest: Any, mass: Any, scales: Any, query_sum: Any, offset: Any, paired: Any, beside: Any,
) -> Any:  # fmt: skip
    """weights[t] = 2 ** (score of t - highest) for t = begin … end - 1, 0 for all others.

    By addresses; for kernels only. The score of t is scores[t] · scale, and with scales of keys
    (scores[t] · key scale + query_sum · key offset) · scale; with a cap other than 0 it is then
    cap · tanh(score / cap). scores: [count] float32, changed;
    count: a multiple of `WIDTH`. weights: [count] bfloat16 if `paired`, a constant, else float32;
    with scales of values each is multiplied with its token's, and `offset`, float32, is written:
    Σ weight · value offset. highest, mass: float32 that are written: the highest score, and the sum
    of the weights, as written where values have no scales. scales: `SCALE_ROWS` rows of `count`
    float32, of which there are those whose numbers are in the text `beside`, a constant.
    """
    size = types.intp
    signature = types.void(*[size] * 5, float32, float32, *[size] * 5, paired, beside)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, marks, total, sums, offsets = (
            builder.inttoptr(args[i], F32.as_pointer()) for i in (0, 7, 8, 10, 11)
        )
        count, begin, end, scale, cap = args[2:7]
        row = _Row(builder, paired.literal_value, beside.literal_value, count, args[9], sums)
        target = builder.inttoptr(args[1], row.stored.as_pointer())
        is_capped = builder.fcmp_ordered("!=", cap, constant(F32, 0.0))
        partial = builder.or_(
            builder.icmp_signed(">", begin, index(0)), builder.icmp_signed("<", end, count)
        )
        is_changed = builder.or_(is_capped, partial)
        seen = builder.icmp_signed("<", begin, end)

        def change() -> None:
            with builder.if_then(is_capped, likely=False):
                row.cap(start, scale, cap)
            with builder.if_then(partial):
                _mask(builder, start, count, begin, end)

        def finish(*, meets_keys: bool) -> None:
            factor = builder.select(is_capped, constant(F32, 1.0), scale)
            top = builder.fmul(row.highest(start, meets_keys), factor)
            mass, offset = row.weigh(start, target, factor, top, meets_keys)
            builder.store(builder.select(seen, top, constant(top.type, float(LOWEST))), marks)
            builder.store(mass, total)
            if row.has(VALUE_OFFSET):
                builder.store(offset, offsets)

        if row.has(KEY_SCALE):
            with builder.if_else(is_changed, likely=False) as (then, otherwise):
                with then:
                    row.scale(start)
                    change()
                    finish(meets_keys=False)
                with otherwise:
                    finish(meets_keys=True)
        else:
            with builder.if_then(is_changed, likely=False):
                change()
            finish(meets_keys=False)
        with builder.if_then(builder.not_(seen)):
            row.clear(target)
            builder.store(constant(F32, 0.0), total)
            if row.has(VALUE_OFFSET):
                builder.store(constant(F32, 0.0), offsets)
        return context.get_dummy_value()

    return signature, emit


class _Row:
    """What is done to the scores and weights of a row, vector by vector.

    Scores may meet the scales of keys as they are read (`meets_keys`), or before (`scale`).
    """

    def __init__(
        self, builder: Any, paired: bool, beside: str, count: Any, scales: Any, query_sum: Any
    ) -> None:
        self._builder, self._paired, self._count = builder, paired, count
        self._scales, self._beside = builder.inttoptr(scales, F32.as_pointer()), beside
        self._query_sum = None
        if self.has(KEY_OFFSET):
            self._query_sum = spread(builder, builder.load(query_sum), LANES)
        self.stored = ir.IntType(16) if paired else F32

    def has(self, row: int) -> bool:
        """Whether there is that row of scales."""
        return str(row) in self._beside

    def scale(self, start: Any) -> None:
        """Scores become those with keys, in place."""
        with self._columns() as column:
            place = self._builder.gep(start, [column])
            score = load_vector(self._builder, place, floats())
            store_vector(self._builder, self._with_keys(score, column), place)

    def highest(self, start: Any, meets_keys: bool) -> Any:
        """The largest of the scores."""
        builder = self._builder

        def pick(x: Any, y: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)

        cells = _cells(builder, float(LOWEST))
        with cgutils.for_range_slice(builder, index(0), self._count, index(WIDTH)) as (first, _):
            for number, cell in enumerate(cells):
                score = self._score(start, builder.add(first, index(number * LANES)), meets_keys)
                builder.store(pick(builder.load(cell), score), cell)
        return combine_lanes(builder, _together(builder, cells, pick), pick)

    def _score(self, start: Any, column: Any, meets_keys: bool) -> Any:
        score = load_vector(self._builder, self._builder.gep(start, [column]), floats())
        return self._with_keys(score, column) if meets_keys else score

    def _with_keys(self, score: Any, column: Any) -> Any:
        """Scores from a column on, by the scales and offsets of their keys."""
        factor = self._read(KEY_SCALE, column)
        if self._query_sum is None:
            return self._builder.fmul(score, factor)
        added = self._builder.fmul(self._read(KEY_OFFSET, column), self._query_sum)
        return fused(self._builder, score, factor, added)

    def cap(self, start: Any, scale: Any, cap: Any) -> None:
        """Scores become whole and capped, in place."""
        builder = self._builder
        inward = spread(builder, builder.fdiv(scale, cap), LANES)
        outward = spread(builder, cap, LANES)
        with self._columns() as column:
            place = builder.gep(start, [column])
            score = builder.fmul(load_vector(builder, place, floats()), inward)
            bent = hyperbolic_tangent(builder, score)
            store_vector(builder, builder.fmul(bent, outward), place)

    def weigh(
        self, start: Any, target: Any, scale: Any, highest: Any, meets_keys: bool
    ) -> tuple[Any, Any]:
        """Write all weights; their sum, and that of their products with values' offsets: in 64
        lanes first, then the lanes in pairs.

        That many more zeros leave the bits of a sum as they are.
        """
        builder, near = self._builder, COARSE if self._paired else PRECISE
        factor = spread(builder, scale, LANES)
        lowered = spread(builder, builder.fneg(highest), LANES)
        mass_cells, offset_cells = _cells(builder, 0.0), _cells(builder, 0.0)
        with cgutils.for_range_slice(builder, index(0), self._count, index(WIDTH)) as (first, _):
            for number, (mass, offset) in enumerate(zip(mass_cells, offset_cells, strict=True)):
                column = builder.add(first, index(number * LANES))
                score = self._score(start, column, meets_keys)
                power = powers_of_two(builder, fused(builder, score, factor, lowered), near)
                weight, place = power, builder.gep(target, [column])
                if self.has(VALUE_SCALE):
                    weight = self._times(power, VALUE_SCALE, column)
                written = store_rounded(builder, self._paired, weight, place)
                counted = power if self.has(VALUE_SCALE) else written
                builder.store(builder.fadd(builder.load(mass), counted), mass)
                if self.has(VALUE_OFFSET):
                    added = self._times(power, VALUE_OFFSET, column)
                    builder.store(builder.fadd(builder.load(offset), added), offset)
        mass, offset = (
            combine_lanes(builder, _together(builder, cells, builder.fadd), builder.fadd)
            for cells in (mass_cells, offset_cells)
        )
        return mass, offset

    def clear(self, target: Any) -> None:
        """All weights become 0."""
        builder = self._builder
        with self._columns() as column:
            nothing = constant(floats(), 0.0)
            store_rounded(builder, self._paired, nothing, builder.gep(target, [column]))

    @contextmanager
    def _columns(self) -> Iterator[Any]:
        step = index(LANES)
        with cgutils.for_range_slice(self._builder, index(0), self._count, step) as (column, _):
            yield column

    def _read(self, row: int, column: Any) -> Any:
        builder = self._builder
        place = builder.add(builder.mul(self._count, index(row)), column)
        return load_vector(builder, builder.gep(self._scales, [place]), floats())

    def _times(self, weight: Any, row: int, column: Any) -> Any:
        """A token of weight 0 stays at 0, whatever is beside it."""
        builder = self._builder
        nothing = constant(weight.type, 0.0)
        counts = builder.fcmp_ordered("!=", weight, nothing)
        product = builder.fmul(weight, self._read(row, column))
        return builder.select(counts, product, nothing)


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


def _cells(builder: Any, value: float) -> list[Any]:
    """Four vectors that grow side by side, so that none has to wait for itself."""
    start = constant(floats(), value)
    return [cgutils.alloca_once_value(builder, start) for _ in range(WIDTH // LANES)]


def _together(builder: Any, cells: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    first, second, third, fourth = (builder.load(cell) for cell in cells)
    return combine(combine(first, second), combine(third, fourth))
