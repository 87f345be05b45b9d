"""Rows of activations rounded to eight bits, for products with weights that stay as stored.

`SPAN` numbers share a scale: the largest of them is 127 times it. What a span becomes is a record:

    codes     [32] int8, those of a lane's `BYTES` steps together (`stored_words`)
    scale     float32
    sums      [3] float32: scale · the sum of codes 0 to 15, 16 to 31, and of all

Records lie span after span, in each the rows in order: [spans][rows]. A row's records depend on it
alone. What is beyond the last whole span has none: weights that stay as stored end with a span.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils

from pagoda.kernels.cpu.byte_products import BYTE, MOST_CODE
from pagoda.kernels.cpu.number import constant, emitted, widened
from pagoda.kernels.cpu.routine import call, compiled, routine_body
from pagoda.kernels.cpu.stored_words import BYTES, SPAN, TOGETHER
from pagoda.kernels.cpu.team import claim, finish
from pagoda.kernels.cpu.vector import (
    F32,
    I32,
    LANES,
    combine_lanes,
    index,
    load_vector,
    store_vector,
)
from pagoda.kernels.cpu.whole_numbers import largest_size, rounded_whole

SCALE, SUMS = SPAN, SPAN + 4
"""Bytes of a record before its scale and its sums."""
RECORD_BYTES = SPAN + 16
_ITEM_ROWS = 4


def record_bytes(width: int) -> int:
    """Of a row's records, for rows of `width` numbers."""
    return width // SPAN * RECORD_BYTES


@cache
def round_routine() -> Any:
    """What makes records of a row's spans. Compiles it or takes it from disk."""

    def round_row(out: int, x: int, stride: int, spans: int) -> None:
        """Records of `spans` spans of a row of bfloat16.

        out: of the first; from record to record are `stride` bytes. By addresses.
        """
        _round_row((out, x, stride, spans), 0)

    return compiled(round_row, 4)


@njit(error_model="numpy")
def round_some(
    routine: int, records: int, x: int, first: int, count: int, rows: int, width: int
) -> None:
    """Make records of `count` rows from row `first` on, of [rows, width] bfloat16 at `x`.

    routine: `round_routine`; records: of all the rows.
    """
    for row in range(first, first + count):
        call(
            routine,
            (records + row * RECORD_BYTES, x + row * width * 2, rows * RECORD_BYTES,
             width // SPAN),
        )  # fmt: skip


@njit(error_model="numpy")
def round_rows(phase: int, routine: int, records: int, x: int, rows: int, width: int) -> None:
    """A thread's share of `round_some` of all rows.

    phase: one that nobody has begun, the same for all threads.
    """
    total = (rows + _ITEM_ROWS - 1) // _ITEM_ROWS
    mine = 0
    item = claim(phase)
    while item < total:
        first = item * _ITEM_ROWS
        round_some(routine, records, x, first, min(_ITEM_ROWS, rows - first), rows, width)
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)


@emitted
def _round_row(typing: Any, args: Any, nothing: Any) -> Any:
    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, x, stride, spans = values
        out = builder.inttoptr(out, BYTE.as_pointer())
        x = builder.inttoptr(x, ir.IntType(16).as_pointer())
        with cgutils.for_range(builder, spans) as loop:
            source = builder.gep(x, [builder.mul(loop.index, index(SPAN))])
            record = builder.gep(out, [builder.mul(loop.index, stride)])
            _round_span(builder, source, record)

    return routine_body(args, (nothing,), emit)


def _round_span(builder: Any, source: Any, record: Any) -> None:
    halves = ir.VectorType(ir.IntType(16), LANES)
    numbers = [
        widened(builder, load_vector(builder, builder.gep(source, [index(first)]), halves))
        for first in range(0, SPAN, LANES)
    ]
    largest = largest_size(builder, numbers)
    scale = builder.fdiv(largest, constant(F32, MOST_CODE))
    is_zero = builder.fcmp_ordered("==", largest, constant(F32, 0.0))
    inverse = builder.fdiv(constant(F32, MOST_CODE), largest)
    inverse = builder.select(is_zero, constant(F32, 0.0), inverse)
    sums = []
    for number, values in enumerate(numbers):
        codes = rounded_whole(builder, values, inverse)
        target = builder.gep(record, [index(number * LANES)])
        narrow = builder.trunc(codes, ir.VectorType(BYTE, LANES))
        store_vector(builder, builder.shuffle_vector(narrow, narrow, _order()), target)
        sums.append(combine_lanes(builder, codes, builder.add))
    sums.append(builder.add(*sums))
    _store_float(builder, scale, record, SCALE)
    for number, total in enumerate(sums):
        value = builder.fmul(scale, builder.sitofp(total, F32))
        _store_float(builder, value, record, SUMS + 4 * number)


def _order() -> Any:
    """Which of sixteen numbers comes where: those of `BYTES` steps of each lane together."""
    places = [
        first + step * TOGETHER + lane
        for first in range(0, LANES, BYTES * TOGETHER)
        for lane in range(TOGETHER)
        for step in range(BYTES)
    ]
    return ir.Constant(ir.VectorType(I32, LANES), places)


def _store_float(builder: Any, value: Any, record: Any, place: int) -> None:
    target = builder.gep(record, [index(place)])
    builder.store(value, builder.bitcast(target, F32.as_pointer()), align=4)
