"""The way into a coded cache: a vector becomes codes, a scale and an offset.

    whole numbers  scale = largest magnitude / 127
    float8         scale = largest magnitude / largest float8; none: numbers are cut off there
    levels         with an offset: scale and offset from smallest to largest number;
                   else the root mean square meets the table's, codes are the nearest levels, and
                   the scale fits these: by least squares, the length, or the product with the
                   vector itself; or, weighted, it is the ufloat8 beside the root mean square
                   with the least sum of weighted squared errors, and chunks that are paths have
                   the codes of the path with the least such sum under it

Everything depends on the vector alone, and so do its bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import float32, njit, types

from pagoda.kernels.cpu.half import from_half, to_half
from pagoda.kernels.cpu.nearest_codes import nearest_codes
from pagoda.kernels.cpu.nearest_levels import nearest_levels
from pagoda.kernels.cpu.nearest_numbers import nearest_float8, nearest_whole
from pagoda.kernels.cpu.nearest_scale import nearest_scale
from pagoda.kernels.cpu.number import emitted, number_at, put_number
from pagoda.kernels.cpu.pack_codes import pack_codes
from pagoda.kernels.cpu.routine import compiled
from pagoda.kernels.cpu.ufloat8 import nearest_ufloat8, ufloat8
from pagoda.kernels.cpu.vector import BYTE
from pagoda.kernels.cpu.vector_sums import product_sum, range_of
from pagoda.kernels.vector_code import FLOAT8_FORMS, VectorCode

_NUM_ARGS = 11


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


@cache
def encode_routine(code: str, fit: str) -> Any:
    """For a `VectorCode`, by its text, and a fit, as `pagoda.codecs` has them.

    Its arguments, addresses but for `token`, `block_size` and `by_token`:

        x       [head_size] float32
        out, token, block_size, by_token        where codes go; see `pack_codes`
        scale   where the scale goes
        offset  where the offset goes
        levels  [TABLE_SIZE] int8
        bounds  [TABLE_SIZE] float32: between the levels of codes of b bits those from 2 ** b on,
                and of windows likewise, as trees (`level_tables`); the first is what a root mean
                square of 1 is brought to
        weights [head_size] float32: how much an error of each number counts; for `weighted` alone
        memory  [2, head_size] float32
    """
    vector_code = VectorCode.of_text(code)
    if vector_code.numbers == "int8":
        return _encode_whole(vector_code)
    if vector_code.numbers != "levels":
        return _encode_float8(vector_code)
    if fit == "weighted":
        return _encode_weighted(vector_code)
    return _encode_even(vector_code) if vector_code.has_offset else _encode_levels(vector_code, fit)


@cache
def _encode_whole(code: VectorCode) -> Any:
    text, is_half = code.text, code.scale == "float16"

    def encode(
        x: int, out: int, token: int, block_size: int, by_token: int, scale: int, offset: int,
        levels: int, bounds: int, weights: int, memory: int,
    ) -> None:  # fmt: skip
        low, high = range_of(x, text)
        largest = max(-low, high) / np.float32(127.0)
        nearest_whole(x, memory, _inverse(_put_scale(scale, largest, is_half)), text)
        pack_codes(memory, out, token, block_size, by_token, text)

    return compiled(encode, _NUM_ARGS)


@cache
def _encode_float8(code: VectorCode) -> Any:
    text, is_half, has_scale = code.text, code.scale == "float16", code.scale is not None
    largest = np.float32(FLOAT8_FORMS[code.numbers].largest)

    def encode(
        x: int, out: int, token: int, block_size: int, by_token: int, scale: int, offset: int,
        levels: int, bounds: int, weights: int, memory: int,
    ) -> None:  # fmt: skip
        factor = np.float32(1.0)
        if has_scale:
            low, high = range_of(x, text)
            factor = _inverse(_put_scale(scale, max(-low, high) / largest, is_half))
        nearest_float8(x, memory, factor, text)
        pack_codes(memory, out, token, block_size, by_token, text)

    return compiled(encode, _NUM_ARGS)


@cache
def _encode_even(code: VectorCode) -> Any:
    text, is_half, width = code.text, code.scale == "float16", code.widths[0]
    assert code.widths == (width,) * len(code.widths)

    def encode(
        x: int, out: int, token: int, block_size: int, by_token: int, scale: int, offset: int,
        levels: int, bounds: int, weights: int, memory: int,
    ) -> None:  # fmt: skip
        low, high = range_of(x, text)
        start = _put_scale(offset, low, is_half)
        steps = np.float32((1 << width) - 1)
        factor = _inverse(_put_scale(scale, (high - start) / steps, is_half))
        nearest_levels(x, memory, start, factor, levels, bounds, text)
        pack_codes(memory, out, token, block_size, by_token, text)

    return compiled(encode, _NUM_ARGS)


@cache
def _encode_levels(code: VectorCode, fit: str) -> Any:
    size, text, is_half = code.head_size, code.text, code.scale == "float16"
    is_unbiased, keeps_norm, nothing = fit == "unbiased", fit == "norm", np.float32(0.0)

    def encode(
        x: int, out: int, token: int, block_size: int, by_token: int, scale: int, offset: int,
        levels: int, bounds: int, weights: int, memory: int,
    ) -> None:  # fmt: skip
        squares = product_sum(x, x, text)
        factor = number_at(bounds, 0, False) * _inverse(np.sqrt(squares / np.float32(size)))
        nearest_levels(x, memory, nothing, factor, levels, bounds, text)
        nearest = memory + 4 * size
        if is_unbiased:
            fitted = squares * _inverse(product_sum(x, nearest, text))
        elif keeps_norm:
            fitted = np.sqrt(squares * _inverse(product_sum(nearest, nearest, text)))
        else:
            along, across = product_sum(x, nearest, text), product_sum(nearest, nearest, text)
            fitted = along * _inverse(across)
        _put_scale(scale, fitted, is_half)
        pack_codes(memory, out, token, block_size, by_token, text)

    return compiled(encode, _NUM_ARGS)


@cache
def _encode_weighted(code: VectorCode) -> Any:
    size, text = code.head_size, code.text

    def encode(
        x: int, out: int, token: int, block_size: int, by_token: int, scale: int, offset: int,
        levels: int, bounds: int, weights: int, memory: int,
    ) -> None:  # fmt: skip
        rms = np.sqrt(product_sum(x, x, text) / np.float32(size))
        middle = nearest_ufloat8(rms * _inverse(number_at(bounds, 0, False)))
        best = nearest_scale(x, middle, weights, levels, bounds, text)
        nearest_codes(x, memory, _inverse(ufloat8(best)), weights, levels, bounds, text)
        _put_byte(scale, best)
        pack_codes(memory, out, token, block_size, by_token, text)

    return compiled(encode, _NUM_ARGS)
