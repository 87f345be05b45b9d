"""The numbers of eight bits nearest to those of a vector, chunk by chunk in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pagoda.kernels.cpu.number import constant, emitted
from pagoda.kernels.cpu.vector import (
    F32,
    I32,
    floats,
    index,
    spread,
    store_vector,
)
from pagoda.kernels.cpu.vector_chunks import chunk_of
from pagoda.kernels.vector_code import CHUNK, FLOAT8_FORMS, VectorCode

_COUNTS = ir.VectorType(I32, CHUNK)
_WHOLE = 1.5 * 2**23
"""Added to a float32 of up to 2 ** 22 and taken away again, it leaves the nearest whole number."""
_MOST = 127.0
_FRACTION_BITS = 23
_BIAS = 127
"""Of float32."""


@emitted
def nearest_whole(typing: Any, x: Any, codes: Any, factor: Any, code: Any) -> Any:
    """Write the whole numbers nearest to x · factor, -127 to 127, as bytes of two's complement.

    x, codes: [head_size] float32. code: of a `VectorCode`, a constant. What is no number gets some
    code.
    """

    def nearest(builder: Any, values: Any) -> Any:
        low, high = constant(floats(), -_MOST), constant(floats(), _MOST)
        above = builder.select(builder.fcmp_ordered(">", values, low), values, low)
        inside = builder.select(builder.fcmp_ordered("<", above, high), above, high)
        return builder.and_(_rounded(builder, inside), constant(_COUNTS, 255))

    return _of_chunks(code, nearest)


@emitted
def nearest_float8(typing: Any, x: Any, codes: Any, factor: Any, code: Any) -> Any:
    """Write the codes of the float8 nearest to x · factor, ties to even; what is beyond the
    largest, or no number, becomes that one.

    x, codes: [head_size] float32. code: of a `VectorCode`, a constant.
    """
    form = FLOAT8_FORMS[VectorCode.of_text(code.literal_value).numbers]
    shift, most = _FRACTION_BITS - form.fraction_bits, constant(floats(), form.largest)

    def nearest(builder: Any, values: Any) -> Any:
        is_negative = builder.fcmp_ordered("<", values, constant(floats(), 0.0))
        unsigned = builder.and_(builder.bitcast(values, _COUNTS), constant(_COUNTS, 0x7FFFFFFF))
        magnitude = builder.bitcast(unsigned, floats(CHUNK))
        magnitude = builder.select(builder.fcmp_ordered("<", magnitude, most), magnitude, most)
        bits = builder.bitcast(magnitude, _COUNTS)
        is_odd = builder.and_(builder.lshr(bits, constant(_COUNTS, shift)), constant(_COUNTS, 1))
        raised = builder.add(bits, constant(_COUNTS, (1 << (shift - 1)) - 1))
        normal = builder.lshr(builder.add(raised, is_odd), constant(_COUNTS, shift))
        first = (_BIAS - form.bias) << form.fraction_bits
        normal = builder.sub(normal, constant(_COUNTS, first))
        # Spaced evenly, like the smallest normal ones.
        one = constant(floats(), 1.0)
        least = builder.select(builder.fcmp_ordered("<", magnitude, one), magnitude, one)
        steps = constant(floats(), 2.0 ** (form.bias + form.fraction_bits - 1))
        small = _rounded(builder, builder.fmul(least, steps))
        exponent = builder.lshr(bits, constant(_COUNTS, _FRACTION_BITS))
        is_small = builder.icmp_signed("<=", exponent, constant(_COUNTS, _BIAS - form.bias))
        sign = builder.select(is_negative, constant(_COUNTS, 128), constant(_COUNTS, 0))
        return builder.or_(builder.select(is_small, small, normal), sign)

    return _of_chunks(code, nearest)


def _of_chunks(code: Any, nearest: Callable[[Any, Any], Any]) -> Any:
    """The signature of what writes codes, int32 made of [16] float32, and what emits it."""
    count = len(VectorCode.of_text(code.literal_value).widths)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, times = builder.inttoptr(args[1], F32.as_pointer()), spread(builder, args[2], CHUNK)
        for chunk in range(count):
            values = builder.fmul(chunk_of(builder, args[0], chunk), times)
            found = builder.sitofp(nearest(builder, values), floats(CHUNK))
            store_vector(builder, found, builder.gep(target, [index(chunk * CHUNK)]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.float32, code), emit


def _rounded(builder: Any, values: Any) -> Any:
    """The nearest whole numbers, ties to even, int32."""
    whole = constant(values.type, _WHOLE)
    return builder.fptosi(builder.fsub(builder.fadd(values, whole), whole), _COUNTS)
