"""The gate of a feed-forward layer."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ACTIVATIONS = ("silu", "gelu_tanh", "clamped_swiglu")
"""Functions of a gate, by name."""

_TILE = 1024


@triton.jit
def gelu_tanh(x):
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (arXiv 1606.08415, section 2)."""
    # (1 + tanh(y)) / 2 is the sigmoid of 2 y; exp may overflow as in `gated`.
    y = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-y))


@triton.jit
def gated(gate, up, activation: tl.constexpr):
    """What an activation makes of gate and up, float32; see `models.decoder.Activation`."""
    # exp overflows to infinity where the gate is far below zero: the quotient is then zero.
    if activation == "gelu_tanh":
        product = gelu_tanh(gate) * up
    elif activation == "clamped_swiglu":
        low = tl.minimum(gate, 7.0)
        product = low / (1.0 + tl.exp(-1.702 * low)) * (tl.clamp(up, -7.0, 7.0) + 1.0)
    else:
        product = gate / (1.0 + tl.exp(-gate)) * up
    return product


@triton.jit
def gate_kernel(
    out, gate_up, width: tl.constexpr, tile: tl.constexpr, activation: tl.constexpr
):  # fmt: skip
    """One program has tile numbers of one row; see `apply_gate`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = column < width
    start = gate_up + row * (2 * width)
    gate = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + width + column, mask=inside, other=0.0).to(tl.float32)
    product = gated(gate, up, activation)
    tl.store(out + row * width + column, product.to(out.dtype.element_ty), mask=inside)


def apply_gate(out: Tensor, gate_up: Tensor, activation: str) -> None:
    """Write what an activation makes of gate and up to out: [T, width], computed in float32.

    gate_up: [T, 2 width], the gates of a row before its ups. Both are contiguous. activation: one
    of `ACTIVATIONS`.
    """
    num_rows, width = out.shape
    assert activation in ACTIVATIONS
    assert gate_up.shape == (num_rows, 2 * width)
    assert out.is_contiguous()
    assert gate_up.is_contiguous()
    tile = min(_TILE, triton.next_power_of_2(width))
    gate_kernel[(num_rows, triton.cdiv(width, tile))](
        out, gate_up, width=width, tile=tile, activation=activation
    )
