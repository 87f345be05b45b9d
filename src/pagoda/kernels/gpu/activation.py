"""The gate of a SwiGLU feed-forward layer."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


@triton.jit
def silu_mul_kernel(out, gate_up, width: tl.constexpr, tile: tl.constexpr):
    """One program has tile numbers of one row; see `silu_mul`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = column < width
    start = gate_up + row * (2 * width)
    gate = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + width + column, mask=inside, other=0.0).to(tl.float32)
    # exp overflows to infinity where the gate is far below zero: the quotient is then zero.
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + column, product.to(out.dtype.element_ty), mask=inside)


def silu_mul(out: Tensor, gate_up: Tensor) -> None:
    """Write gate / (1 + exp(-gate)) · up to out: [T, width], computed in float32.

    gate_up: [T, 2 width], the gates of a row before its ups. Both are contiguous.
    """
    num_rows, width = out.shape
    assert gate_up.shape == (num_rows, 2 * width)
    assert out.is_contiguous()
    assert gate_up.is_contiguous()
    tile = min(_TILE, triton.next_power_of_2(width))
    silu_mul_kernel[(num_rows, triton.cdiv(width, tile))](out, gate_up, width=width, tile=tile)
