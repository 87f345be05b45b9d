"""Puts rows of quantised types into panels (`stored_panels`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.kernel import kernel
from pagoda.kernels.cpu.number import constant, emitted
from pagoda.kernels.cpu.routine import call, compiled, routine_body
from pagoda.kernels.cpu.stored_types import STORED_TYPES, Position, StoredType
from pagoda.kernels.cpu.stored_words import (
    STEPS,
    TOGETHER,
    code_offset,
    first_bit,
    word_bits,
    word_steps,
)
from pagoda.kernels.cpu.vector import I32, LANES, load_vector, spread, store_vector

_BYTE = ir.IntType(8)
_BYTES = ir.VectorType(_BYTE, LANES)
_STEP_CODES = np.uint16 if TOGETHER == 2 else np.uint8
"""A number's code and those beside it."""


def pack_stored(name: str, rows: Array, target: Array) -> bool:
    """Put rows of a type into panels; returns whether all its float16 are finite.

    rows: [out, bytes of a row] uint8; target: written, uint8 [panels, bytes of a panel].
    """
    is_finite = np.ones(len(target), np.bool_)
    _pack(_block(name), rows, target, is_finite)
    return bool(is_finite.all())


class _Block(NamedTuple):
    """What a type's blocks are."""

    head: Array
    """Bytes without codes, in order."""
    halves: Array
    """The upper byte of each float16."""
    num_values: int
    num_bytes: int
    read_codes: int
    """Address of `_code_routine`."""
    write_words: int
    """Address of `_word_routine`."""


@cache
def _block(name: str) -> _Block:
    stored = STORED_TYPES[name]
    return _Block(
        head=np.array(stored.head),
        halves=np.array(stored.halves, np.int64) + 1,
        num_values=stored.block_values,
        num_bytes=stored.block_bytes,
        read_codes=_code_routine(name).address,
        write_words=_word_routine(name).address,
    )


@kernel
def _pack(block: _Block, rows: Array, target: Array, is_finite: Array) -> None:
    num_blocks = rows.shape[1] // block.num_bytes
    for panel in prange(target.shape[0]):
        codes = np.zeros((PANEL, block.num_values // TOGETHER), _STEP_CODES)
        turned = np.empty((block.num_values // TOGETHER, PANEL), _STEP_CODES)
        count = min(PANEL, rows.shape[0] - panel * PANEL)
        out = target[panel]
        if count < PANEL:
            out[:] = 0
        for number in range(num_blocks):
            start = number * PANEL * block.num_bytes
            for row in range(count):
                source = rows[panel * PANEL + row]
                first = number * block.num_bytes
                for place in range(block.head.shape[0]):
                    out[start + place * PANEL + row] = source[first + block.head[place]]
                for half in range(block.halves.shape[0]):
                    if source[first + block.halves[half]] & 0x7C == 0x7C:
                        is_finite[panel] = False
                call(block.read_codes, (codes.ctypes.data + row * block.num_values,
                                  source.ctypes.data + first))  # fmt: skip
            _turn(codes, turned)
            head_bytes = block.head.shape[0] * PANEL
            call(block.write_words, (out.ctypes.data + start + head_bytes, turned.ctypes.data))


@njit(error_model="numpy")
def _turn(codes: Array, turned: Array) -> None:
    for step in range(turned.shape[0]):
        for row in range(PANEL):
            turned[step, row] = codes[row, step]


@cache
def _code_routine(name: str) -> Any:
    def read_codes(codes: int, block: int) -> None:
        """codes[n] = the code of number n of a row's block: uint8, by addresses."""
        _read_codes((codes, block), name)

    return compiled(read_codes, 2)


@emitted
def _read_codes(typing: Any, args: Any, name: Any) -> Any:
    stored = STORED_TYPES[name.literal_value]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        codes, block = (builder.inttoptr(value, _BYTE.as_pointer()) for value in values)
        for first in range(0, stored.block_values, LANES):
            found = _parts(builder, block, stored.low, first, stored.low_bits)
            if offset := code_offset(stored):
                less = builder.sub(found, constant(_BYTES, offset))
                found = builder.and_(less, constant(_BYTES, (1 << stored.low_bits) - 1))
            if stored.high is not None:
                high = _parts(builder, block, stored.high, first, stored.high_bits)
                high = builder.shl(high, constant(_BYTES, stored.low_bits))
                found = builder.or_(found, high)
            store_vector(builder, found, builder.gep(codes, [ir.Constant(I32, first)]))

    return routine_body(args, (name,), emit)


def _parts(builder: Any, block: Any, place: Any, first: int, bits: int) -> Any:
    """Parts of the codes of sixteen numbers, in the lowest bits of bytes."""
    byte, bit = place(first)
    if place(first + 1)[0] == byte:
        return (_single_bits if bits == 1 else _pairs)(builder, block, byte)
    _require_run(place, first)
    found = load_vector(builder, builder.gep(block, [ir.Constant(I32, byte)]), _BYTES)
    if bit:
        found = builder.lshr(found, constant(_BYTES, bit))
    return found if bit + bits == 8 else builder.and_(found, constant(_BYTES, (1 << bits) - 1))


def _single_bits(builder: Any, block: Any, byte: int) -> Any:
    """The sixteen bits of two bytes, from the lowest on."""
    word = ir.IntType(16)
    source = builder.bitcast(builder.gep(block, [ir.Constant(I32, byte)]), word.as_pointer())
    bits = spread(builder, builder.load(source, align=1), LANES)
    each = builder.lshr(bits, ir.Constant(bits.type, list(range(LANES))))
    return builder.trunc(builder.and_(each, constant(bits.type, 1)), _BYTES)


def _pairs(builder: Any, block: Any, byte: int) -> Any:
    """Lower and upper halves of eight bytes, in turn."""
    half = ir.VectorType(_BYTE, LANES // 2)
    both = load_vector(builder, builder.gep(block, [ir.Constant(I32, byte)]), half)
    low, high = builder.and_(both, constant(half, 15)), builder.lshr(both, constant(half, 4))
    places = [number // 2 + number % 2 * (LANES // 2) for number in range(LANES)]
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, LANES), places))


def _require_run(place: Any, first: int) -> None:
    """Sixteen numbers whose parts lie in consecutive bytes, as in every type."""
    byte, bit = place(first)
    expected = [(byte + number, bit) for number in range(LANES)]
    found: list[Position] = [place(first + number) for number in range(LANES)]
    assert found == expected, f"codes lie at {found}"


@cache
def _word_routine(name: str) -> Any:
    def write_words(words: int, turned: int) -> None:
        """Codes of a panel's block, [steps][rows][numbers of a step], as `stored_words` says."""
        _write_words((words, turned), name)

    return compiled(write_words, 2)


@emitted
def _write_words(typing: Any, args: Any, name: Any) -> Any:
    stored = STORED_TYPES[name.literal_value]

    def emit(builder: Any, values: Sequence[Any]) -> None:
        words, turned = (builder.inttoptr(value, _BYTE.as_pointer()) for value in values)
        at = 0
        for span in range(0, stored.block_values // TOGETHER, STEPS):
            for band in range(0, PANEL * TOGETHER, LANES):
                for from_bit, bits in _code_parts(stored):
                    count = word_steps(bits)
                    for step in range(span, span + STEPS, count):
                        places = [
                            (step + number) * PANEL * TOGETHER + band for number in range(count)
                        ]
                        word = _word(builder, turned, places, from_bit, bits)
                        store_vector(builder, word, builder.gep(words, [ir.Constant(I32, at)]))
                        at += LANES * word_bits(bits) // 8

    return routine_body(args, (name,), emit)


def _code_parts(stored: StoredType) -> list[tuple[int, int]]:
    """The first bit of a code that words of a span hold, and how many, in the order of words."""
    parts = [(0, stored.low_bits), (stored.low_bits, stored.high_bits)]
    return parts if stored.high_bits else parts[:1]


def _word(builder: Any, turned: Any, places: list[int], from_bit: int, bits: int) -> Any:
    """A word of each lane: so many bits, from one on, of the codes at `places`."""
    lanes = ir.VectorType(ir.IntType(word_bits(bits)), LANES)
    word = ir.Constant(lanes, None)
    for number, place in enumerate(places):
        codes = load_vector(builder, builder.gep(turned, [ir.Constant(I32, place)]), _BYTES)
        if from_bit:
            codes = builder.lshr(codes, constant(_BYTES, from_bit))
        code = builder.zext(builder.and_(codes, constant(_BYTES, (1 << bits) - 1)), lanes)
        word = builder.or_(word, builder.shl(code, constant(lanes, first_bit(number, bits))))
    return word
