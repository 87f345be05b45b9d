"""RMS norm of the residual stream, with the addition before it.

One program has one row: it is read once, and nothing but its own numbers goes into it, so a row is
the same alone and among others. Sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def norm_kernel(
    out, stream, delta, weight, eps,
    width: tl.constexpr, tile: tl.constexpr, adds: tl.constexpr,
):  # fmt: skip
    """See `add_rms_norm`, or `rms_norm` unless adds; tile is a power of two from width on."""
    start = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, tile)
    inside = column < width
    x = tl.load(stream + start + column, mask=inside, other=0.0)
    if adds:
        x += tl.load(delta + start + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(stream + start + column, x, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start + column, (x * scale * w).to(out.dtype.element_ty), mask=inside)


def rms_norm(out: Tensor, stream: Tensor, weight: Tensor, eps: float) -> None:
    """Write x / sqrt(mean(x²) + eps) · weight of every row x to out: [T, width], any dtype.

    stream: [T, width] float32; weight: [width], any dtype. All are contiguous.
    """
    _launch(out, stream, stream, weight, eps, adds=False)


def add_rms_norm(out: Tensor, stream: Tensor, delta: Tensor, weight: Tensor, eps: float) -> None:
    """Add delta: [T, width], any dtype, to stream: [T, width] float32 in place; then `rms_norm`.

    out may be delta: a row has been read before the sum that its norm waits for is known.
    """
    _launch(out, stream, delta, weight, eps, adds=True)


def _launch(
    out: Tensor, stream: Tensor, delta: Tensor, weight: Tensor, eps: float, adds: bool
) -> None:
    num_rows, width = stream.shape
    assert out.shape == delta.shape == stream.shape
    assert weight.shape == (width,)
    assert all(each.is_contiguous() for each in (out, stream, delta, weight))
    tile = triton.next_power_of_2(width)
    num_warps = min(16, max(1, tile // 512))
    norm_kernel[(num_rows,)](
        out, stream, delta, weight, eps, width=width, tile=tile, adds=adds, num_warps=num_warps
    )
