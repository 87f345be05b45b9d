"""Weights in panels that keep GGUF's quantised types: as many bytes as in the file.

A panel is `PANEL` rows of a weight [out, in], block after block along `in`. One block of a panel:

    head      [bytes of a block without codes][32 rows]
    codes     [bands of rows][spans of 32 numbers]{low words, high words}

Codes lie as they are decoded, sixteen at a time: `BAND` rows with `TOGETHER` numbers of each, so
that what comes out is in the order of a plain panel. A word holds numbers of one of sixteen lanes,
from its lowest bits on: of a span as many as fit into 32 bits of low parts, or 16 bits of high
parts. The last panel of a weight is filled up with rows of zeros.

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
from pagoda.kernels.cpu.stored_types import STORED_TYPES, Head, StoredType
from pagoda.kernels.cpu.vector import (
    I32,
    LANES,
    UNIT,
    floats,
    index,
    load_vector,
    look_up,
    pointer,
    rounded_in_place,
    store_rounded,
    store_vector,
)

SPAN = 32
"""Numbers of a row that are decoded in one go."""
TOGETHER = 2 if UNIT.pairs else 1
"""Numbers of a row side by side in a decoded panel: a group of four bytes."""
BAND = LANES // TOGETHER
"""Rows of a panel that are decoded together."""
STEPS = SPAN // TOGETHER
"""Of a span."""
_BYTE = ir.IntType(8)
LOW_WORD, HIGH_WORD = I32, ir.IntType(16)
"""What holds low and high parts of codes."""


@cache
def decode_routine(name: str) -> Any:
    """For panels of a type of GGUF's. Compiles it or takes it from disk."""

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


def code_offset(stored: StoredType) -> int:
    """What is taken from codes as they are packed: they are two's complement then.

    Those that lie in two parts are not, which would take more to put together.
    """
    return 0 if stored.high_bits else stored.offset


class _Decoder:
    """Emits what decodes a band of a panel."""

    def __init__(self, builder: Any, stored: StoredType) -> None:
        self._builder, self._stored = builder, stored
        self._spans = stored.block_values // SPAN
        self._span_bytes = LANES * STEPS * (stored.low_bits + stored.high_bits) // 8
        self._scales = _Scales(builder, stored)

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
                self._decode_span(span, self._codes(block, band, span), builder.gep(target, [step]))

    def _codes(self, block: Any, band: Any, span: Any) -> Any:
        """Where the codes of a band's span lie."""
        builder = self._builder
        number = builder.mul(builder.udiv(band, index(BAND)), index(self._spans))
        place = builder.mul(builder.add(number, span), index(self._span_bytes))
        head = index(PANEL * len(self._stored.head))
        return builder.gep(block, [builder.add(head, place)])

    def _decode_span(self, span: Any, words: Any, target: Any) -> None:
        builder, stored = self._builder, self._stored
        codes = _Codes(builder, stored, words)
        steps = stored.scale_values // TOGETHER  # that share a scale
        for step in range(STEPS):
            if step % steps == 0:
                scale, addend = self._scales.of(span, step // steps)
            number = codes.number(step)
            if addend is None:
                value = builder.fmul(scale, number)
            else:
                value = fused(builder, scale, number, addend)
            place = builder.gep(target, [index(step * PANEL)])
            if TOGETHER == 2:
                store_rounded(builder, True, value, place)
            else:
                store_vector(builder, rounded_in_place(builder, value), place)


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


class _Scales:
    """Scales and addends of a band's block, on the stack until its codes are decoded."""

    def __init__(self, builder: Any, stored: StoredType) -> None:
        self._builder, self._stored = builder, stored
        self._per_span = SPAN // stored.scale_values
        self._kind = floats(BAND)
        count = stored.block_values // stored.scale_values
        self._memory = cgutils.alloca_once(builder, self._kind, size=2 * count)
        self._has_addend = False

    def prepare(self, head: Any) -> None:
        """Work out all of a block; head: pointer to the first byte of the band's rows."""
        builder, bytes_of = self._builder, ir.VectorType(_BYTE, BAND)
        places = {place: number for number, place in enumerate(self._stored.head)}

        def byte(place: int) -> Any:
            source = builder.gep(head, [index(places[place] * PANEL)])
            found = builder.load(builder.bitcast(source, bytes_of.as_pointer()), align=1)
            return builder.zext(found, ir.VectorType(I32, BAND))

        block = Head(builder, byte, self._kind)
        for number in range(self._stored.block_values // self._stored.scale_values):
            scale, addend = self._stored.scale(block, number)
            builder.store(scale, self._place(index(number), 0))
            self._has_addend = addend is not None
            if addend is not None:
                builder.store(addend, self._place(index(number), 1))

    def of(self, span: Any, number: int) -> tuple[Any, Any]:
        """Scale and addend of the span's numbers that share scale `number`, in every lane."""
        builder = self._builder
        place = builder.add(builder.mul(span, index(self._per_span)), index(number))
        scale = self._spread(self._place(place, 0))
        return scale, self._spread(self._place(place, 1)) if self._has_addend else None

    def _place(self, number: Any, which: int) -> Any:
        twice = self._builder.mul(number, index(2))
        return self._builder.gep(self._memory, [self._builder.add(twice, index(which))])

    def _spread(self, place: Any) -> Any:
        """A lane for each of a row's numbers."""
        value = self._builder.load(place)
        if TOGETHER == 1:
            return value
        lanes = ir.Constant(ir.VectorType(I32, LANES), [lane // 2 for lane in range(LANES)])
        return self._builder.shuffle_vector(value, value, lanes)


class _Codes:
    """The codes of a band's span, as they are taken out of their words."""

    def __init__(self, builder: Any, stored: StoredType, words: Any) -> None:
        self._builder, self._stored = builder, stored
        self._kind = ir.VectorType(I32, LANES)
        low_bytes = STEPS * stored.low_bits // LOW_WORD.width * 4 * LANES
        self._low = self._words(words, LOW_WORD, stored.low_bits)
        high = builder.gep(words, [index(low_bytes)])
        self._high = self._words(high, HIGH_WORD, stored.high_bits)

    def _words(self, start: Any, word: Any, bits: int) -> list[Any]:
        builder, kind = self._builder, ir.VectorType(word, LANES)
        found = []
        for number in range(STEPS * bits // word.width):
            source = builder.gep(start, [index(number * LANES * word.width // 8)])
            value = load_vector(builder, source, kind)
            found.append(value if word is LOW_WORD else builder.zext(value, self._kind))
        return found

    def number(self, step: int) -> Any:
        """The sixteen numbers of a step, float32, but for their scales."""
        stored, builder = self._stored, self._builder
        code = self._low_part(step)
        if stored.high_bits:
            code = builder.or_(code, self._high_part(step))
            if stored.offset:
                code = builder.sub(code, constant(self._kind, stored.offset))
        if stored.table:
            return look_up(builder, stored.table, code)
        return builder.sitofp(code, floats(LANES))

    def _low_part(self, step: int) -> Any:
        stored, builder, bits = self._stored, self._builder, self._stored.low_bits
        number, place = divmod(step, LOW_WORD.width // bits)
        word = self._low[number]
        if stored.is_signed or code_offset(stored):
            above = LOW_WORD.width - bits * (place + 1)
            moved = builder.shl(word, constant(self._kind, above)) if above else word
            return builder.ashr(moved, constant(self._kind, LOW_WORD.width - bits))
        moved = builder.lshr(word, constant(self._kind, bits * place)) if place else word
        return builder.and_(moved, constant(self._kind, (1 << bits) - 1))

    def _high_part(self, step: int) -> Any:
        """Where the code has it."""
        stored, builder, bits = self._stored, self._builder, self._stored.high_bits
        number, place = divmod(step, HIGH_WORD.width // bits)
        word, by = self._high[number], bits * place - stored.low_bits
        if by > 0:
            word = builder.lshr(word, constant(self._kind, by))
        elif by < 0:
            word = builder.shl(word, constant(self._kind, -by))
        return builder.and_(word, constant(self._kind, ((1 << bits) - 1) << stored.low_bits))
