"""Weights in panels that keep quantised types: as many bytes as the blocks of their rows.

A panel is `PANEL` rows of a weight [out, in], block after block along `in`. One block of a panel:

    head      [bytes of a block without codes][32 rows]
    codes     [spans of 32 numbers][bands of rows]{low words, high words}

Codes lie as they are decoded, sixteen at a time: `BAND` rows with `TOGETHER` numbers of each, so
that what comes out is in the order of a plain panel (`stored_words`). The last panel of a weight is
filled up with rows of zeros.

Numbers are rounded to bfloat16, as de-quantising rounds them. Where a CPU multiplies pairs of
bfloat16, a panel is decoded to such pairs, elsewhere to float32, which saves taking pairs apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.number import emitted, fused
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.stored_numbers import Numbers, raised_by
from pagoda.kernels.cpu.stored_scales import Scales
from pagoda.kernels.cpu.stored_types import STORED_TYPES, StoredType
from pagoda.kernels.cpu.stored_words import (
    BAND,
    SPAN,
    STEPS,
    TOGETHER,
    ask_codes,
    blocks_ahead,
    codes_of_span,
)
from pagoda.kernels.cpu.vector import (
    BYTE,
    I32,
    LANES,
    index,
    lane_numbers,
    pointer,
    rounded_in_place,
    rounded_pairs,
    store_vector,
)


@cache
def decode_routine(name: str) -> Any:
    """For panels of a type. Compiles it or takes it from disk."""

    def decode(
        target: int, panel: int, first: int, count: int, row: int, rows: int, asks: int
    ) -> None:
        """Numbers `first` to `first + count` of a panel's rows, in whole spans.

        target: [count / TOGETHER][PANEL][TOGETHER] of bfloat16 where these are two, else float32;
        of its rows, only `rows` from `row` on are written, in whole `LANES`. asks: unless 0, what
        comes later is asked from memory meanwhile.
        """
        _decode((target, panel, first, count, row, rows, asks), name)

    return compiled(decode, 7)


@emitted
def _decode(typing: Any, args: Any, name: Any) -> Any:
    stored = STORED_TYPES[name.literal_value]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        target, panel, first, count, row, rows, asks = values
        panel = builder.inttoptr(panel, BYTE.as_pointer())
        target = pointer(builder, target)
        decoder = _Decoder(builder, stored, asks)
        spans = index(SPAN)
        begin, end = (builder.udiv(place, spans) for place in (first, builder.add(first, count)))
        with cgutils.for_range(builder, builder.udiv(rows, index(LANES))) as each:
            start = builder.add(row, builder.mul(each.index, index(LANES)))
            decoder.decode_rows(panel, start, begin, end, builder.gep(target, [start]))

    return routine_body(args, (name,), emit)


class _Decoder:
    """Emits what decodes `LANES` rows of a panel."""

    def __init__(self, builder: Any, stored: StoredType, asks: Any) -> None:
        self._builder, self._stored = builder, stored
        self._asks = builder.icmp_signed("!=", asks, index(0))
        self._spans = stored.block_values // SPAN
        self._scales = Scales(builder, stored, LANES, raised_by(stored))

    def decode_rows(self, panel: Any, row: Any, begin: Any, end: Any, target: Any) -> None:
        """Spans `begin` to `end` of the rows from `row` on; target: where the first one goes."""
        builder, spans = self._builder, index(self._spans)
        first = builder.udiv(begin, spans)
        last = builder.udiv(builder.sub(end, index(1)), spans)
        count = builder.add(builder.sub(last, first), index(1))
        with cgutils.for_range(builder, count) as blocks:
            number = builder.add(first, blocks.index)
            block_bytes = index(PANEL * self._stored.block_bytes)
            block = builder.gep(panel, [builder.mul(number, block_bytes)])
            self._scales.prepare(builder.gep(block, [row]))
            start = builder.mul(number, spans)
            low = _larger(builder, builder.sub(begin, start), index(0))
            high = _smaller(builder, builder.sub(end, start), spans)
            with cgutils.for_range(builder, builder.sub(high, low)) as each:
                span = builder.add(low, each.index)
                done = builder.sub(builder.add(start, span), begin)
                step = builder.mul(done, index(STEPS * PANEL))
                with builder.if_then(self._asks):
                    later = builder.mul(block_bytes, index(blocks_ahead(self._stored)))
                    ask_codes(builder, self._stored, builder.gep(block, [later]), row, span)
                groups = Groups(builder, self._stored, self._scales, block, row, span)
                for each_step in range(STEPS):
                    place = builder.gep(target, [builder.add(step, index(each_step * PANEL))])
                    store_vector(builder, groups.of(each_step), place)


class Groups:
    """The numbers of a span of `LANES` rows, in groups as plain panels have them."""

    def __init__(
        self, builder: Any, stored: StoredType, scales: Scales, block: Any, row: Any, span: Any
    ) -> None:
        """block: pointer to its first byte; row: the first of the panel's.

        scales: of these rows, or of all.
        """
        self._builder, self._scales, self._span = builder, scales, span
        self._row = row if scales.num_rows == PANEL else None
        self._steps = stored.scale_values // TOGETHER
        self._bands = []
        for band in range(TOGETHER):
            first = builder.add(row, index(band * BAND))
            codes = codes_of_span(builder, stored, block, first, span)
            self._bands.append(Numbers(builder, stored, codes))
        self._factors: list[tuple[Any, Any]] = []

    def of(self, step: int) -> Any:
        """Those of a step, an int32 in each lane; steps are asked for in order."""
        builder = self._builder
        if step % self._steps == 0:
            scale, addend = self._scales.of(self._span, step // self._steps, self._row)
            self._factors = [
                (self._spread(scale, band), None if addend is None else self._spread(addend, band))
                for band in range(TOGETHER)
            ]
        values = []
        for band, (scale, addend) in zip(self._bands, self._factors, strict=True):
            number = band.of(step)
            values.append(
                builder.fmul(scale, number)
                if addend is None
                else fused(builder, scale, number, addend)
            )
        if TOGETHER == 2:
            return rounded_pairs(builder, *values)
        return builder.bitcast(rounded_in_place(builder, values[0]), ir.VectorType(I32, LANES))

    def _spread(self, value: Any, band: int) -> Any:
        """A lane for each of a row's numbers, of the rows of a band."""
        if TOGETHER == 1:
            return value
        lanes = [band * BAND + lane // 2 for lane in range(LANES)]
        return self._builder.shuffle_vector(value, value, lane_numbers(lanes))


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)
