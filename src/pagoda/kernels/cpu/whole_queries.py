"""Queries rounded to whole numbers, as rows of groups: see `whole_form`.

What a row is rounded to depends on it alone, so nothing does on what else is in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from pagoda.kernels.cpu.long_vectors import LANE_BY_LANE, ROWS
from pagoda.kernels.cpu.number import constant, emitted, integer_at
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.vector import (
    BYTE,
    F32,
    I32,
    LANES,
    combine_lanes,
    floats,
    index,
    lane_numbers,
    load_vector,
    store_vector,
)
from pagoda.kernels.cpu.whole_form import MOST_NARROW, MOST_WIDE, RAISED_BY, WholeForm
from pagoda.kernels.cpu.whole_numbers import WHOLE, largest_size, rounded_whole

_LEAST_STEP = 2.0**-64
"""Of a query that is smaller than any, too: scores are multiplied by steps, and that of a token
that does not count has to stay below all others."""
_SHORT = ir.IntType(16)


@cache
def round_queries_routine(head_dim: int, wide: int) -> Any:
    """For heads of a `WholeForm`. Compiles it or takes it from disk."""
    size = head_dim * 4
    row_size = (WholeForm(head_dim, wide).num_groups + 1) * 4

    def round_queries(
        out: int, steps: int, sums: int, queries: int, row_bytes: int, tokens: int, count: int,
        first_head: int, end_head: int, group_size: int,
    ) -> None:  # fmt: skip
        """out = queries of `count` tokens and some KV heads, in the order of rows, as rows of
        groups; steps = what 1 stands for in each, and sums = those of its whole numbers: [rows]
        float32.

        queries: float32, the heads first in each row; tokens: [count] int64, which rows.
        """
        row = 0
        for head in range(first_head, end_head):
            for t in range(count):
                source = queries + integer_at(tokens, t, 64) * row_bytes
                source += head * group_size * size
                for g in range(group_size):
                    _round_row(
                        (out + row * row_size, steps + row * 4, sums + row * 4, source + g * size),
                        head_dim, wide,
                    )  # fmt: skip
                    row += 1

    return compiled(round_queries, 10)


@emitted
def _round_row(typing: Any, args: Any, head_dim: Any, wide: Any) -> Any:
    form = WholeForm(head_dim.literal_value, wide.literal_value)

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, steps, sums, source = values
        out = builder.inttoptr(out, I32.as_pointer())
        source = builder.inttoptr(source, F32.as_pointer())
        firsts = range(0, form.head_dim, LANES)
        numbers = [
            load_vector(builder, builder.gep(source, [index(first)]), floats()) for first in firsts
        ]
        step = _step(builder, form, numbers)
        inverse = builder.fdiv(constant(F32, 1.0), step)
        wide_sum, narrow_sum = constant(WHOLE, 0), constant(WHOLE, 0)
        for first, each in zip(firsts, numbers, strict=True):
            whole = rounded_whole(builder, each, inverse)
            if first < form.wide:
                wide_sum = builder.add(wide_sum, whole)
                _put(builder, out, first // 2, whole, _SHORT, range(LANES))
            else:
                narrow_sum = builder.add(narrow_sum, whole)
                group = form.num_pairs + (first - form.wide) // 4
                _put(builder, out, group, whole, BYTE, _NARROW_ORDER)
        start = builder.mul(
            combine_lanes(builder, narrow_sum, builder.add), constant(I32, -RAISED_BY)
        )
        builder.store(start, builder.gep(out, [index(form.num_groups)]))
        builder.store(step, builder.inttoptr(steps, F32.as_pointer()))
        total = combine_lanes(builder, builder.add(wide_sum, narrow_sum), builder.add)
        builder.store(builder.sitofp(total, F32), builder.inttoptr(sums, F32.as_pointer()))

    return routine_body(args, (head_dim, wide), emit)


_NARROW_ORDER = [
    first + row for first in range(0, LANES, ROWS) for _, row in LANE_BY_LANE[:ROWS]
]  # fmt: skip


def _step(builder: Any, form: WholeForm, numbers: Sequence[Any]) -> Any:
    """What 1 stands for: the smallest with which all numbers of a query fit, or no number."""
    chunks = form.wide // LANES
    front = [
        builder.fmul(each, constant(each.type, MOST_NARROW / MOST_WIDE))
        for each in numbers[:chunks]
    ]
    largest = largest_size(builder, [*front, *numbers[chunks:]])
    step = builder.fdiv(largest, constant(F32, MOST_NARROW))
    least = constant(F32, _LEAST_STEP)
    return builder.select(builder.fcmp_ordered("<", step, least), least, step)


def _put(
    builder: Any, out: Any, group: int, whole: Any, kind: Any, order: Sequence[int]
) -> None:  # fmt: skip
    """Write sixteen numbers in that order from a group on, as `kind`."""
    small = builder.trunc(whole, ir.VectorType(kind, LANES))
    ordered = builder.shuffle_vector(small, small, lane_numbers(order))
    store_vector(builder, ordered, builder.gep(out, [index(group)]))
