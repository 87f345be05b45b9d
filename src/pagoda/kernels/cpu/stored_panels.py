"""Weights in panels that keep quantised types: as many bytes as the blocks of their rows.

A panel is `PANEL` rows of a weight [out, in], block after block along `in`. One block of a panel:

    head      [bytes of a block without codes][32 rows]
    codes     [bands of rows][spans of 32 numbers]{low words, high words}

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
from pagoda.kernels.cpu.number import constant, emitted, fused
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.stored_scales import Scales
from pagoda.kernels.cpu.stored_types import STORED_TYPES, StoredType
from pagoda.kernels.cpu.stored_words import (
    BAND,
    SPAN,
    STEPS,
    TOGETHER,
    Words,
    codes_of_span,
)
from pagoda.kernels.cpu.vector import (
    I32,
    LANES,
    floats,
    index,
    look_up,
    pointer,
    rounded_in_place,
    store_rounded,
    store_vector,
)

_BYTE = ir.IntType(8)


@cache
def decode_routine(name: str) -> Any:
    """For panels of a type. Compiles it or takes it from disk."""

    def decode(target: int, panel: int, first: int, count: int, row: int, rows: int) -> None:
        """Numbers `first` to `first + count` of a panel's rows, in whole spans.

        target: [count / TOGETHER][PANEL][TOGETHER] of bfloat16 where these are two, else float32;
        of its rows, only `rows` from `row` on are written, in whole bands.
        """
        _decode((target, panel, first, count, row, rows), name)

    return compiled(decode, 6)


@emitted
def _decode(typing: Any, args: Any, name: Any) -> Any:
    stored = STORED_TYPES[name.literal_value]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        target, panel, first, count, row, rows = values
        panel = builder.inttoptr(panel, _BYTE.as_pointer())
        target = pointer(builder, target)
        decoder = _Decoder(builder, stored)
        spans = index(SPAN)
        begin, end = (builder.udiv(place, spans) for place in (first, builder.add(first, count)))
        bands = builder.udiv(rows, index(BAND))
        with cgutils.for_range(builder, bands) as each:
            band = builder.add(row, builder.mul(each.index, index(BAND)))
            decoder.decode_band(panel, band, begin, end, builder.gep(target, [band]))

    return routine_body(args, (name,), emit)


class _Decoder:
    """Emits what decodes a band of a panel."""

    def __init__(self, builder: Any, stored: StoredType) -> None:
        self._builder, self._stored = builder, stored
        self._spans = stored.block_values // SPAN
        self._scales = Scales(builder, stored)

    def decode_band(self, panel: Any, band: Any, begin: Any, end: Any, target: Any) -> None:
        """Spans `begin` to `end` of the rows from `band` on; target: where the first one goes."""
        builder, spans = self._builder, index(self._spans)
        first = builder.udiv(begin, spans)
        last = builder.udiv(builder.sub(end, index(1)), spans)
        count = builder.add(builder.sub(last, first), index(1))
        with cgutils.for_range(builder, count) as blocks:
            number = builder.add(first, blocks.index)
            block_bytes = index(PANEL * self._stored.block_bytes)
            block = builder.gep(panel, [builder.mul(number, block_bytes)])
            self._scales.prepare(builder.gep(block, [band]))
            start = builder.mul(number, spans)
            low = _larger(builder, builder.sub(begin, start), index(0))
            high = _smaller(builder, builder.sub(end, start), spans)
            with cgutils.for_range(builder, builder.sub(high, low)) as each:
                span = builder.add(low, each.index)
                done = builder.sub(builder.add(start, span), begin)
                step = builder.mul(done, index(STEPS * PANEL))
                words = codes_of_span(builder, self._stored, block, band, span)
                self._decode_span(span, words, builder.gep(target, [step]))

    def _decode_span(self, span: Any, start: Any, target: Any) -> None:
        builder, stored = self._builder, self._stored
        words = Words(builder, stored, start)
        steps = stored.scale_values // TOGETHER  # that share a scale
        for step in range(STEPS):
            if step % steps == 0:
                scale, addend = self._of(span, step // steps)
            number = self._number(words, step)
            if addend is None:
                value = builder.fmul(scale, number)
            else:
                value = fused(builder, scale, number, addend)
            place = builder.gep(target, [index(step * PANEL)])
            if TOGETHER == 2:
                store_rounded(builder, True, value, place)
            else:
                store_vector(builder, rounded_in_place(builder, value), place)

    def _of(self, span: Any, number: int) -> tuple[Any, Any]:
        """Scale and addend, in every lane."""
        scale, addend = self._scales.of(span, number)
        return self._spread(scale), None if addend is None else self._spread(addend)

    def _spread(self, value: Any) -> Any:
        """A lane for each of a row's numbers."""
        if TOGETHER == 1:
            return value
        lanes = ir.Constant(ir.VectorType(I32, LANES), [lane // 2 for lane in range(LANES)])
        return self._builder.shuffle_vector(value, value, lanes)

    def _number(self, words: Words, step: int) -> Any:
        """The sixteen numbers of a step, float32, but for their scales."""
        code = words.code(step)
        if self._stored.table:
            return look_up(self._builder, self._stored.table, code)
        if self._stored.exponent_bits:
            return self._small_float(code)
        return self._builder.sitofp(code, floats(LANES))

    def _small_float(self, code: Any) -> Any:
        """A sign, an exponent and a fraction, moved to where float32 has them.

        The exponent is too small there by the difference of what both add to it, which a product
        with a power of two mends, also where it is 0 and the fraction stands alone.
        """
        builder, exponent, bits = self._builder, self._stored.exponent_bits, self._stored.low_bits
        top = builder.shl(code, constant(code.type, 32 - bits))
        moved = builder.ashr(top, constant(code.type, 8 - exponent))
        mask = 1 << 31 | ((1 << bits - 1) - 1) << (24 + exponent - bits)
        value = builder.and_(moved, constant(code.type, mask))
        power = constant(floats(LANES), 2.0 ** (128 - 2 ** (exponent - 1)))
        return builder.fmul(builder.bitcast(value, floats(LANES)), power)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)
