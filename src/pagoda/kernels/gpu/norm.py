"""Norms of the residual stream, with the addition before them.

One program has one row: it is read once, and nothing but its own numbers goes into it, so a row is
the same alone and among others. Sums are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class RowNorm(NamedTuple):
    """How rows are normed: x / sqrt(mean(x²) + eps) · (weight + offset) + bias."""

    eps: float
    is_centred: bool = False
    """Layer norm: the mean is taken off x first."""
    weight_offset: float = 0.0
    """Added to weights in float32."""
    is_shifted: bool = False
    """There are biases, behind the weights."""


@triton.jit
def normed(
    x, weight, column, inside, eps,
    width: tl.constexpr, is_centred: tl.constexpr, offset: tl.constexpr, is_shifted: tl.constexpr,
):  # fmt: skip
    """The norm of a row x, float32 and 0 where not inside; see `RowNorm`."""
    if is_centred:
        x = tl.where(inside, x - tl.sum(x, axis=0) / width, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if offset != 0.0:
        w += offset
    if is_shifted:
        bias = tl.load(weight + width + column, mask=inside, other=0.0).to(tl.float32)
        return x * scale * w + bias
    return x * scale * w


@triton.jit
def norm_kernel(
    out, stream, delta, weight, delta_weight, eps,
    width: tl.constexpr, tile: tl.constexpr, delta_scale: tl.constexpr, is_centred: tl.constexpr,
    offset: tl.constexpr, is_shifted: tl.constexpr,
):  # fmt: skip
    """See `add_and_norm`, or `norm_rows` without delta; tile is a power of two from width on."""
    start = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, tile)
    inside = column < width
    x = tl.load(stream + start + column, mask=inside, other=0.0).to(tl.float32)
    if delta is not None:
        added = tl.load(delta + start + column, mask=inside, other=0.0).to(tl.float32)
        if delta_weight is not None:
            added = normed(
                added, delta_weight, column, inside, eps, width, is_centred, offset, is_shifted
            )
        if delta_scale != 1.0:
            added *= delta_scale
        x += added
        tl.store(stream + start + column, x, mask=inside)
    if out is not None:
        if weight is not None:
            x = normed(x, weight, column, inside, eps, width, is_centred, offset, is_shifted)
        tl.store(out + start + column, x.to(out.dtype.element_ty), mask=inside)


def norm_rows(out: Tensor, stream: Tensor, weight: Tensor | None, norm: RowNorm) -> None:
    """Write the norm of every row of stream to out: [T, width], any dtype.

    stream: [T, width], any dtype; weight: [width], with biases [2 * width], any dtype, or None:
    rows are written as they are. All are contiguous. out may be stream.
    """
    _launch(out, stream, None, weight, None, 1.0, norm)


def add_and_norm(
    out: Tensor | None, stream: Tensor, delta: Tensor, weight: Tensor | None, norm: RowNorm,
    delta_weight: Tensor | None = None, delta_scale: float = 1.0,
) -> None:  # fmt: skip
    """Add delta_scale · delta: [T, width], any dtype, to stream, float32, in place; then
    `norm_rows`.

    delta_weight: as weight: delta is normed before, likewise; or None. out: None: nothing
    is written but the stream. out may be delta: a row has been read before the sum that its norm
    waits for is known.
    """
    _launch(out, stream, delta, weight, delta_weight, delta_scale, norm)


def _launch(
    out: Tensor | None, stream: Tensor, delta: Tensor | None, weight: Tensor | None,
    delta_weight: Tensor | None, delta_scale: float, norm: RowNorm,
) -> None:  # fmt: skip
    num_rows, width = stream.shape
    rows = [each for each in (out, stream, delta) if each is not None]
    weights = [each for each in (weight, delta_weight) if each is not None]
    assert all(each.shape == stream.shape for each in rows)
    assert all(each.shape == ((1 + norm.is_shifted) * width,) for each in weights)
    assert all(each.is_contiguous() for each in (*rows, *weights))
    tile = triton.next_power_of_2(width)
    num_warps = min(16, max(1, tile // 512))
    norm_kernel[(num_rows,)](
        out, stream, delta, weight, delta_weight, norm.eps, width=width, tile=tile,
        delta_scale=delta_scale, is_centred=norm.is_centred, offset=norm.weight_offset,
        is_shifted=norm.is_shifted, num_warps=num_warps,
    )  # fmt: skip
