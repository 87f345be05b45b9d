"""What a row's experts made of it, put together in their ascending order."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


@triton.jit
def combine_kernel(
    out, parts, weights, gates,
    width: tl.constexpr, tile: tl.constexpr, num_used: tl.constexpr, has_shared: tl.constexpr,
    gates_stride: tl.constexpr, gate_column: tl.constexpr,
):  # fmt: skip
    """One program has tile numbers of one row; see `combine`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = column < width
    sums = tl.zeros((tile,), tl.float32)
    for number in range(num_used):
        pair = row * num_used + number
        part = tl.load(parts + pair * width + column, mask=inside, other=0.0)
        sums += tl.load(weights + pair) * part.to(tl.float32)
    if has_shared:
        shared = tl.load(out + row * width + column, mask=inside, other=0.0).to(tl.float32)
        if gates is not None:
            shared /= 1.0 + tl.exp(-tl.load(gates + row * gates_stride + gate_column))
        sums += shared
    tl.store(out + row * width + column, sums.to(out.dtype.element_ty), mask=inside)


def combine(
    out: Tensor, parts: Tensor, weights: Tensor, *, has_shared: bool,
    logits: Tensor | None = None, gate_column: int = 0,
) -> None:  # fmt: skip
    """Write the sum of weight · part to out: [T, width]; sums are float32.

    parts: [T · num_used, width], a row's one after the other; weights: [T, num_used] float32.
    has_shared: what out has is added, times the sigmoid of column `gate_column` of `logits`,
    [T, any] float32, where they are given. All are contiguous.
    """
    num_rows, width = out.shape
    num_used = weights.shape[1]
    assert parts.shape == (num_rows * num_used, width)
    assert len(weights) == num_rows
    assert all(each.is_contiguous() for each in (out, parts, weights))
    tile = min(_TILE, triton.next_power_of_2(width))
    combine_kernel[(num_rows, triton.cdiv(width, tile))](
        out, parts, weights, logits, width=width, tile=tile, num_used=num_used,
        has_shared=has_shared, gates_stride=0 if logits is None else logits.shape[1],
        gate_column=gate_column,
    )  # fmt: skip
