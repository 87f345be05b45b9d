"""ufloat8 inside the kernels: float32 without a sign, cut off behind its first fraction bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit

from pagoda.kernels.cpu.number import bits_of, constant, float_of
from pagoda.kernels.cpu.vector import F32, I32
from pagoda.kernels.vector_code import UFLOAT8_BIAS, UFLOAT8_FRACTION

_SHIFT = 23 - UFLOAT8_FRACTION
_LOWEST = (127 - UFLOAT8_BIAS) << UFLOAT8_FRACTION
"""What float32's exponent and first fraction bits have more."""


def from_ufloat8(builder: Any, codes: Any) -> Any:
    """A vector of codes, int8, as float32."""
    kind = ir.VectorType(I32, codes.type.count)
    wide = builder.zext(codes, kind)
    moved = builder.shl(builder.add(wide, constant(kind, _LOWEST)), constant(kind, _SHIFT))
    nothing = constant(kind, 0)
    bits = builder.select(builder.icmp_signed("==", wide, nothing), nothing, moved)
    return builder.bitcast(bits, ir.VectorType(F32, kind.count))


@njit(error_model="numpy")
def nearest_ufloat8(value: np.float32) -> int:
    """The code nearest to a number that is not below 0; at most the largest."""
    return min(max(int((bits_of(value) + (1 << (_SHIFT - 1))) >> _SHIFT) - _LOWEST, 0), 255)


@njit(error_model="numpy")
def ufloat8(code: int) -> np.float32:
    """What a code stands for."""
    if code == 0:
        return np.float32(0.0)
    return float_of((code + _LOWEST) << _SHIFT)
