"""Weights in panels that keep GGUF's quantised types: as many bytes as in the file.

A panel is `PANEL` rows of a weight [out, in], block after block along `in`. One block of a panel:

    head      [bytes of a block without codes][32 rows]
    codes     [4 octets of rows][spans of 32 numbers]{low words, high words}

Codes lie as they are decoded: a vector has sixteen lanes, two numbers of each row of an octet, so
that what comes out is in the order of a panel of bfloat16. A word of a lane holds every second
number of a row, from its lowest bits on: of a span as many as fit into 32 bits of low parts, or 16
bits of high parts. The last panel of a weight is filled up with rows of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.number import constant, emitted
from pagoda.kernels.cpu.panel_product import OCTET, PANEL
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.stored_types import STORED_TYPES, Head, StoredType, positions
from pagoda.kernels.cpu.vector import (
    I32,
    LANES,
    floats,
    index,
    load_vector,
    look_up,
    multiply_add,
    store_rounded,
)

SPAN = 32
"""Numbers of a row that are decoded together."""
_PAIRS = SPAN // 2
_BYTE, _WORD = ir.IntType(8), ir.IntType(16)
_LOW_WORD_BITS, _HIGH_WORD_BITS = 32, 16


class _Order(NamedTuple):
    """A type's blocks and the order of codes in a panel, as `pack_stored` takes them."""

    head: Array
    """Bytes of a block, in order."""
    halves: Array
    """The upper byte of each float16."""
    positions: Array
    """[block_values, 4]: see `positions`."""
    block_values: int
    block_bytes: int
    low_bits: int
    high_bits: int
    minus: int
    """Subtracted from codes, which then are two's complement."""


def panel_bytes(name: str, width: int) -> int:
    """Bytes of a panel of rows of `width` numbers, of a type of GGUF's."""
    stored = STORED_TYPES[name]
    return PANEL * stored.block_bytes * (width // stored.block_values)


@cache
def _order(name: str) -> _Order:
    stored = STORED_TYPES[name]
    return _Order(
        head=np.array(stored.head),
        halves=np.array(stored.halves) + 1,
        positions=np.array(list(positions(stored))),
        block_values=stored.block_values,
        block_bytes=stored.block_bytes,
        low_bits=stored.low_bits,
        high_bits=stored.high_bits,
        minus=_offset_in_codes(stored),
    )


def _offset_in_codes(stored: StoredType) -> int:
    """Codes that lie together are stored as two's complement, which takes no subtraction."""
    return 0 if stored.high_bits else stored.offset


def pack_stored(name: str, rows: Array, order: Array | None, target: Array) -> bool:
    """Put rows of a type of GGUF's into panels; returns whether all their scales are finite.

    rows: [out, bytes of a row] uint8; order: [out] int64, which of them comes where, None as they
    are; target: written, uint8 [panels, `panel_bytes`].
    """
    places = np.arange(len(rows)) if order is None else order
    found = np.ones(len(target), np.bool_)
    _pack(_order(name), rows, places, target, found)
    return bool(found.all())


@kernel
def _pack(order: _Order, rows: Array, places: Array, target: Array, is_finite: Array) -> None:
    num_blocks = rows.shape[1] // order.block_bytes
    for panel in prange(target.shape[0]):
        codes = np.zeros((PANEL, order.block_values), np.uint8)
        out = target[panel].reshape(num_blocks, PANEL * order.block_bytes)
        count = min(PANEL, rows.shape[0] - panel * PANEL)
        for block in range(num_blocks):
            first, end = block * order.block_bytes, (block + 1) * order.block_bytes
            head = out[block, : order.head.shape[0] * PANEL].reshape(order.head.shape[0], PANEL)
            head[:] = 0
            for row in range(count):
                source = rows[places[panel * PANEL + row], first:end]
                for place in range(head.shape[0]):
                    head[place, row] = source[order.head[place]]
                for half in order.halves:
                    if source[half] & 0x7C == 0x7C:
                        is_finite[panel] = False
                _unpack(order, source, codes[row])
            _put_codes(order, codes, out[block, head.size :])


@njit(error_model="numpy")
def _unpack(order: _Order, source: Array, codes: Array) -> None:
    """codes[n] = the code of number n."""
    low_mask, high_mask = (1 << order.low_bits) - 1, (1 << order.high_bits) - 1
    mask = (1 << (order.low_bits + order.high_bits)) - 1
    for value in range(codes.shape[0]):
        place = order.positions[value]
        low = (source[place[0]] >> place[1]) & low_mask
        high = (source[place[2]] >> place[3]) & high_mask
        codes[value] = ((low | high << order.low_bits) - order.minus) & mask


@njit(error_model="numpy")
def _put_codes(order: _Order, codes: Array, out: Array) -> None:
    """Codes of a panel's block, [PANEL, block_values], in the order of decoding."""
    at = 0
    low_values = _LOW_WORD_BITS // order.low_bits * 2
    low_mask = (1 << order.low_bits) - 1
    for octet in range(PANEL // OCTET):
        rows = codes[octet * OCTET : (octet + 1) * OCTET]
        for span in range(0, order.block_values, SPAN):
            for first in range(span, span + SPAN, low_values):
                _put_words(rows, first, order.low_bits, 0, low_mask, 4, out[at:])
                at += 4 * LANES
            if order.high_bits:
                high_values = _HIGH_WORD_BITS // order.high_bits * 2
                high_mask = (1 << order.high_bits) - 1
                for first in range(span, span + SPAN, high_values):
                    _put_words(
                        rows, first, order.high_bits, order.low_bits, high_mask, 2, out[at:]
                    )
                    at += 2 * LANES


@njit(error_model="numpy")
def _put_words(
    rows: Array, first: int, bits: int, shift: int, mask: int, word_bytes: int, out: Array
) -> None:
    """A word of each lane: numbers `first`, `first` + 2, … of every row, then those between."""
    for row in range(OCTET):
        for parity in range(2):
            word = 0
            for place in range(8 * word_bytes // bits):
                code = (rows[row, first + 2 * place + parity] >> shift) & mask
                word |= code << (bits * place)
            for byte in range(word_bytes):
                out[(2 * row + parity) * word_bytes + byte] = (word >> (8 * byte)) & 0xFF


@cache
def decode_routine(name: str) -> Any:
    """For panels of a type of GGUF's. Compiles it or takes it from disk."""

    def decode(target: int, panel: int, first: int, count: int, octet: int, octets: int) -> None:
        """Groups `first` to `first + count` of a panel as bfloat16: target [count][PANEL][2].

        Of the rows only `octets` octets from number `octet` on. first and count are whole blocks.
        """
        _decode((target, panel, first, count, octet, octets), name)

    return compiled(decode, 6)


@emitted
def _decode(typing: Any, args: Any, name: Any) -> Any:
    stored = STORED_TYPES[name.literal_value]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        target, panel, first, count, octet, octets = values
        groups = index(stored.block_values // 2)
        panel = builder.inttoptr(panel, _BYTE.as_pointer())
        target = builder.inttoptr(target, I32.as_pointer())
        scales = _Scales(builder, stored)
        first_block = builder.udiv(first, groups)
        with cgutils.for_range(builder, builder.udiv(count, groups)) as blocks:
            block_bytes = index(PANEL * stored.block_bytes)
            number = builder.add(first_block, blocks.index)
            block = builder.gep(panel, [builder.mul(number, block_bytes)])
            columns = index(PANEL * stored.block_values // 2)
            out = builder.gep(target, [builder.mul(blocks.index, columns)])
            with cgutils.for_range(builder, octets) as each:
                row = builder.mul(builder.add(octet, each.index), index(OCTET))
                scales.prepare(builder.gep(block, [row]))
                codes = builder.mul(builder.udiv(row, index(OCTET)), index(_octet_bytes(stored)))
                codes = builder.add(codes, index(PANEL * len(stored.head)))
                _emit_octet(
                    builder, stored, scales, builder.gep(block, [codes]), builder.gep(out, [row])
                )

    return routine_body(args, (name,), emit)


def _octet_bytes(stored: StoredType) -> int:
    """Bytes of the codes of an octet's block."""
    return OCTET * stored.block_values * (stored.low_bits + stored.high_bits) // 8


def _emit_octet(builder: Any, stored: StoredType, scales: _Scales, codes: Any, out: Any) -> None:
    """One block of an octet of rows; codes: pointer to bytes; out: to groups."""
    with cgutils.for_range(builder, index(stored.block_values // SPAN)) as spans:
        span_bytes = _octet_bytes(stored) * SPAN // stored.block_values
        words = builder.gep(codes, [builder.mul(spans.index, index(span_bytes))])
        code = _Codes(builder, stored, words)
        target = builder.gep(out, [builder.mul(spans.index, index(_PAIRS * PANEL))])
        pairs = stored.scale_values // 2  # that share a scale
        for pair in range(_PAIRS):
            if pair % pairs == 0:
                scale, addend = scales.of(spans.index, pair // pairs)
            number = code.number(pair)
            if addend is None:
                value = builder.fmul(scale, number)
            else:
                value = multiply_add(builder, scale, number, addend)
            store_rounded(builder, True, value, builder.gep(target, [index(pair * PANEL)]))


class _Scales:
    """Scales and addends of an octet's block, on the stack until its codes are decoded."""

    def __init__(self, builder: Any, stored: StoredType) -> None:
        self._builder, self._stored = builder, stored
        self._per_span = SPAN // stored.scale_values
        self._kind = floats(OCTET)
        count = stored.block_values // stored.scale_values
        self._memory = cgutils.alloca_once(builder, self._kind, size=2 * count)
        self._has_addend = False

    def prepare(self, head: Any) -> None:
        """Work out all of a block; head: pointer to the first byte of the octet's rows."""
        builder, bytes_of = self._builder, ir.VectorType(_BYTE, OCTET)
        places = {place: number for number, place in enumerate(self._stored.head)}

        def byte(place: int) -> Any:
            source = builder.gep(head, [index(places[place] * PANEL)])
            found = builder.load(builder.bitcast(source, bytes_of.as_pointer()), align=1)
            return builder.zext(found, ir.VectorType(I32, OCTET))

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
        scale = self._doubled(self._place(place, 0))
        return scale, self._doubled(self._place(place, 1)) if self._has_addend else None

    def _place(self, number: Any, which: int) -> Any:
        twice = self._builder.mul(number, index(2))
        return self._builder.gep(self._memory, [self._builder.add(twice, index(which))])

    def _doubled(self, place: Any) -> Any:
        """A lane for each of a row's two numbers."""
        value = self._builder.load(place)
        lanes = ir.Constant(ir.VectorType(I32, LANES), [lane // 2 for lane in range(LANES)])
        return self._builder.shuffle_vector(value, value, lanes)


class _Codes:
    """The codes of an octet's span, as they are taken out of their words."""

    def __init__(self, builder: Any, stored: StoredType, words: Any) -> None:
        self._builder, self._stored = builder, stored
        self._kind = ir.VectorType(I32, LANES)
        low_bytes = _PAIRS * stored.low_bits // _LOW_WORD_BITS * 4 * LANES
        self._low = self._words(words, I32, stored.low_bits)
        high = builder.gep(words, [index(low_bytes)])
        self._high = self._words(high, _WORD, stored.high_bits)

    def _words(self, start: Any, word: Any, bits: int) -> list[Any]:
        builder, kind = self._builder, ir.VectorType(word, LANES)
        found = []
        for number in range(_PAIRS * bits // word.width):
            source = builder.gep(start, [index(number * LANES * word.width // 8)])
            value = load_vector(builder, source, kind)
            found.append(value if word is I32 else builder.zext(value, self._kind))
        return found

    def number(self, pair: int) -> Any:
        """The numbers of a pair, float32, as the type's codes mean them but for the scale."""
        stored, builder = self._stored, self._builder
        code = self._low_part(pair)
        if stored.high_bits:
            code = builder.or_(code, self._high_part(pair))
            if stored.offset:
                code = builder.sub(code, constant(self._kind, stored.offset))
        if stored.table:
            return look_up(builder, stored.table, code)
        return builder.sitofp(code, floats(LANES))

    def _low_part(self, pair: int) -> Any:
        stored, builder, bits = self._stored, self._builder, self._stored.low_bits
        number, place = divmod(pair, _LOW_WORD_BITS // bits)
        word = self._low[number]
        if stored.is_signed or (stored.offset and not stored.high_bits):
            above = _LOW_WORD_BITS - bits * (place + 1)
            moved = builder.shl(word, constant(self._kind, above)) if above else word
            return builder.ashr(moved, constant(self._kind, _LOW_WORD_BITS - bits))
        moved = builder.lshr(word, constant(self._kind, bits * place)) if place else word
        return builder.and_(moved, constant(self._kind, (1 << bits) - 1))

    def _high_part(self, pair: int) -> Any:
        """Where the code has it."""
        stored, builder, bits = self._stored, self._builder, self._stored.high_bits
        number, place = divmod(pair, _HIGH_WORD_BITS // bits)
        word, by = self._high[number], bits * place - stored.low_bits
        if by > 0:
            word = builder.lshr(word, constant(self._kind, by))
        elif by < 0:
            word = builder.shl(word, constant(self._kind, -by))
        return builder.and_(word, constant(self._kind, ((1 << bits) - 1) << stored.low_bits))
