"""The gate of a feed-forward layer, or the function of one that has none."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "clamped_swiglu")
"""Functions of a gate, by name; the last is one of gate and up."""

_TILE = 1024


@triton.jit
def gelu_tanh(x):
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (arXiv 1606.08415, section 2)."""
    # (1 + tanh(y)) / 2 is the sigmoid of 2 y; exp may overflow as in `gated`.
    y = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-y))


@triton.jit
def activated(x, activation: tl.constexpr):
    """What an activation makes of x, float32; see `models.decoder.Activation`."""
    # exp overflows to infinity where x is far below zero: the quotient is then zero.
    if activation == "gelu_tanh":
        found = gelu_tanh(x)
    elif activation == "gelu":
        found = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        found = x / (1.0 + tl.exp(-x))
    return found


@triton.jit
def gated(gate, up, activation: tl.constexpr):
    """What an activation makes of gate and up, float32; likewise."""
    if activation == "clamped_swiglu":
        low = tl.minimum(gate, 7.0)
        product = low / (1.0 + tl.exp(-1.702 * low)) * (tl.clamp(up, -7.0, 7.0) + 1.0)
    else:
        product = activated(gate, activation) * up
    return product


@triton.jit
def gate_kernel(
    out, gate_up, width: tl.constexpr, tile: tl.constexpr, activation: tl.constexpr,
    is_gated: tl.constexpr,
):  # fmt: skip
    """One program has tile numbers of one row; see `apply_gate` and `apply_activation`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = column < width
    start = gate_up + row * ((1 + is_gated) * width)
    first = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
    if is_gated:
        up = tl.load(start + width + column, mask=inside, other=0.0).to(tl.float32)
        product = gated(first, up, activation)
    else:
        product = activated(first, activation)
    tl.store(out + row * width + column, product.to(out.dtype.element_ty), mask=inside)


def apply_gate(out: Tensor, gate_up: Tensor, activation: str) -> None:
    """Write what an activation makes of gate and up to out: [T, width], computed in float32.

    gate_up: [T, 2 width], the gates of a row before its ups. Both are contiguous. activation: one
    of `ACTIVATIONS`.
    """
    assert activation in ACTIVATIONS
    _launch(out, gate_up, activation, is_gated=True)


def apply_activation(out: Tensor, x: Tensor, activation: str) -> None:
    """Write what an activation makes of x to out, both [T, width] and contiguous, as `apply_gate`.

    activation: one of `ACTIVATIONS` that is no function of gate and up.
    """
    assert activation in ACTIVATIONS[:-1]
    _launch(out, x, activation, is_gated=False)


def _launch(out: Tensor, x: Tensor, activation: str, *, is_gated: bool) -> None:
    num_rows, width = out.shape
    assert x.shape == (num_rows, (1 + is_gated) * width)
    assert out.is_contiguous()
    assert x.is_contiguous()
    tile = min(_TILE, triton.next_power_of_2(width))
    gate_kernel[(num_rows, triton.cdiv(width, tile))](
        out, x, width=width, tile=tile, activation=activation, is_gated=is_gated
    )
