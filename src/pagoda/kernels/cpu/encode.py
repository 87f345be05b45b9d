"""The way into a coded cache: a vector becomes codes, a scale and an offset.

    whole numbers  scale = largest magnitude / 127
    float8         scale = largest magnitude / largest float8; none: numbers are cut off there
    levels         with an offset: scale and offset from smallest to largest number;
                   else the root mean square meets the table's, codes are the nearest levels, and
                   the scale fits these: by least squares, the length, or the product with the
                   vector itself

Everything depends on the vector alone, and so do its bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import float32, int32, njit, types

from pagoda.kernels.cpu.half import from_half, to_half
from pagoda.kernels.cpu.number import emitted, integer_at, number_at, put_number
from pagoda.kernels.cpu.routine import compiled
from pagoda.kernels.cpu.vector import BYTE, I32
from pagoda.kernels.vector_code import CHUNK, FLOAT8_FORMS, PLANES, VectorCode

_NUM_ARGS = 8
_SUM = {"contract", "nsz", "reassoc"}


@emitted
def _put_byte(typing: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], BYTE), builder.inttoptr(args[0], BYTE.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), emit


@emitted
def _put_half(typing: Any, address: Any, value: Any) -> Any:
    """Write a float16; returns it as float32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        half = to_half(builder, args[1])
        builder.store(half, builder.inttoptr(args[0], half.type.as_pointer()), align=1)
        return from_half(builder, half)

    return float32(types.intp, float32), emit


@emitted
def _bits_of(typing: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], I32)

    return int32(float32), emit


@njit(error_model="numpy")
def _float8(value: np.float32, fraction_bits: int, bias: int, largest: np.float32) -> int:
    """The nearest float8, ties to even; beyond the largest it is that one."""
    magnitude = abs(value)
    if not magnitude < largest:  # not a number, too
        magnitude = largest
    sign = 128 if value < np.float32(0.0) else 0
    shift = 23 - fraction_bits
    if _bits_of(magnitude) >> 23 <= 127 - bias:  # spaced evenly, like the smallest normal ones
        return sign | int(np.rint(magnitude * np.float32(2.0 ** (bias + fraction_bits - 1))))
    bits = _bits_of(magnitude)
    rounded = (bits + (1 << (shift - 1)) - 1 + ((bits >> shift) & 1)) >> shift
    return sign | (int(rounded) - ((127 - bias) << fraction_bits))


@njit(error_model="numpy", fastmath=_SUM)
def _squares(x: int, size: int) -> np.float32:
    total = np.float32(0.0)
    for i in range(size):
        value = number_at(x, i, False)
        total += value * value
    return total


@njit(error_model="numpy")
def _range_of(x: int, size: int) -> tuple[np.float32, np.float32]:
    low = high = number_at(x, 0, False)
    for i in range(1, size):
        value = number_at(x, i, False)
        low, high = min(low, value), max(high, value)
    return low, high


@njit(error_model="numpy")
def _put_scale(address: int, value: np.float32, is_half: bool) -> np.float32:
    """Returns what was written."""
    if is_half:
        return np.float32(_put_half(address, value))
    put_number(address, 0, value, False)
    return value


@njit(error_model="numpy")
def _inverse(value: np.float32) -> np.float32:
    """1 / value, and 0 for what is too small to be divided by."""
    if value < np.float32(1e-30):
        return np.float32(0.0)
    return np.float32(1.0) / value


@njit(error_model="numpy")
def _nearest(
    x: int, codes: int, count: int, width: int, factor: np.float32, offset: np.float32, bounds: int
) -> None:
    """codes, float32: how many of a width's bounds lie below (x - offset) · factor."""
    for i in range(count):
        put_number(codes, i, np.float32(0.0), False)
    first = 1 << width
    for number in range(first, 2 * first - 1):
        bound = number_at(bounds, number, False)
        for i in range(count):
            value = (number_at(x, i, False) - offset) * factor
            above = np.float32(1.0) if value > bound else np.float32(0.0)
            put_number(codes, i, number_at(codes, i, False) + above, False)


@njit(error_model="numpy")
def _pack(codes: int, planes: tuple[tuple[int, int, int], ...], out: int, step: int) -> None:
    """Codes, whole numbers in float32, to bytes; planes: first number, lowest bit, bits of each."""
    for first, low, bits in planes:
        for byte in range(2 * bits):
            together = 0
            for part in range(8 // bits):
                value = int(number_at(codes, first + part * 2 * bits + byte, False))
                together |= ((value >> low) & ((1 << bits) - 1)) << (bits * part)
            _put_byte(out, together)
            out += step


@njit(error_model="numpy")
def _level(levels: int, codes: int, number: int, first: int) -> np.float32:
    """What code `number` stands for, those of its width beginning at `first`."""
    return np.float32(integer_at(levels, first + int(number_at(codes, number, False)), 8))


@cache
def encode_routine(code: str, fit: str) -> Any:
    """For a `VectorCode`, by its text, and a fit, as `pagoda.codecs` has them.

    Its arguments, addresses and one number of bytes:

        x       [head_size] float32
        out     byte i of the codes goes to out + i · step
        scale   where the scale goes
        offset  where the offset goes
        levels  [TABLE_SIZE] int8
        bounds  [TABLE_SIZE] float32: between the levels of codes of b bits those from 2 ** b on;
                the first is what a root mean square of 1 is brought to
        memory  [head_size] float32
    """
    vector_code = VectorCode.of_text(code)
    if vector_code.numbers == "int8":
        return _encode_whole(vector_code)
    if vector_code.numbers != "levels":
        return _encode_float8(vector_code)
    return _encode_even(vector_code) if vector_code.has_offset else _encode_levels(vector_code, fit)


@cache
def _encode_whole(code: VectorCode) -> Any:
    size, planes, is_half = code.head_size, _planes(code), code.scale == "float16"

    def encode(
        x: int, out: int, step: int, scale: int, offset: int, levels: int, bounds: int, memory: int
    ) -> None:
        limit = np.float32(127.0)
        low, high = _range_of(x, size)
        factor = _inverse(_put_scale(scale, max(-low, high) / limit, is_half))
        for i in range(size):
            value = min(max(np.rint(number_at(x, i, False) * factor), -limit), limit)
            put_number(memory, i, np.float32(int(value) & 255), False)
        _pack(memory, planes, out, step)

    return compiled(encode, _NUM_ARGS)


@cache
def _encode_float8(code: VectorCode) -> Any:
    size, planes, is_half = code.head_size, _planes(code), code.scale == "float16"
    form, has_scale = FLOAT8_FORMS[code.numbers], code.scale is not None
    fraction_bits, bias, largest = form.fraction_bits, form.bias, np.float32(form.largest)

    def encode(
        x: int, out: int, step: int, scale: int, offset: int, levels: int, bounds: int, memory: int
    ) -> None:
        factor = np.float32(1.0)
        if has_scale:
            low, high = _range_of(x, size)
            factor = _inverse(_put_scale(scale, max(-low, high) / largest, is_half))
        for i in range(size):
            found = _float8(number_at(x, i, False) * factor, fraction_bits, bias, largest)
            put_number(memory, i, np.float32(found), False)
        _pack(memory, planes, out, step)

    return compiled(encode, _NUM_ARGS)


@cache
def _encode_even(code: VectorCode) -> Any:
    size, planes, is_half = code.head_size, _planes(code), code.scale == "float16"
    width = code.widths[0]
    assert code.widths == (width,) * len(code.widths)

    def encode(
        x: int, out: int, step: int, scale: int, offset: int, levels: int, bounds: int, memory: int
    ) -> None:
        low, high = _range_of(x, size)
        start = _put_scale(offset, low, is_half)
        steps = np.float32((1 << width) - 1)
        factor = _inverse(_put_scale(scale, (high - start) / steps, is_half))
        _nearest(x, memory, size, width, factor, start, bounds)
        _pack(memory, planes, out, step)

    return compiled(encode, _NUM_ARGS)


@cache
def _encode_levels(code: VectorCode, fit: str) -> Any:
    size, planes, is_half = code.head_size, _planes(code), code.scale == "float16"
    widths, is_unbiased, keeps_norm = code.widths, fit == "unbiased", fit == "norm"

    def encode(
        x: int, out: int, step: int, scale: int, offset: int, levels: int, bounds: int, memory: int
    ) -> None:
        squares = _squares(x, size)
        factor = number_at(bounds, 0, False) * _inverse(np.sqrt(squares / np.float32(size)))
        along = across = np.float32(0.0)
        for chunk in range(len(widths)):
            values, codes, width = x + chunk * CHUNK * 4, memory + chunk * CHUNK * 4, widths[chunk]
            _nearest(values, codes, CHUNK, width, factor, np.float32(0.0), bounds)
            for i in range(CHUNK):
                level = _level(levels, codes, i, 1 << width)
                along += number_at(values, i, False) * level
                across += level * level
        if is_unbiased:
            fitted = squares * _inverse(along)
        elif keeps_norm:
            fitted = np.sqrt(squares * _inverse(across))
        else:
            fitted = along * _inverse(across)
        _put_scale(scale, fitted, is_half)
        _pack(memory, planes, out, step)

    return compiled(encode, _NUM_ARGS)


def _planes(code: VectorCode) -> tuple[tuple[int, int, int], ...]:
    """Of each plane the first number, its lowest bit and its bits."""
    found = []
    for chunk, width in enumerate(code.widths):
        low = 0
        for bits in PLANES[width]:
            found.append((chunk * CHUNK, low, bits))
            low += bits
    return tuple(found)
