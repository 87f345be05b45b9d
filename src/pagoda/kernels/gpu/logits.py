"""What is done to logits before anything is drawn from them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagoda.kernels.gpu.attention_tile import capped

_TILE = 1024


@triton.jit
def logits_kernel(
    logits, width: tl.constexpr, tile: tl.constexpr, scale: tl.constexpr, cap: tl.constexpr
):  # fmt: skip
    """One program has tile numbers of one row; see `adjust_logits`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = column < width
    x = tl.load(logits + row * width + column, mask=inside, other=0.0)
    if scale != 1.0:
        x *= scale
    if cap is not None:
        x = capped(x, cap)
    tl.store(logits + row * width + column, x, mask=inside)


def adjust_logits(logits: Tensor, scale: float, cap: float | None) -> None:
    """logits = cap · tanh(logits · scale / cap), or logits · scale without a cap, in place.

    logits: [T, width] float32, contiguous. Nothing is launched where nothing would change.
    """
    if scale == 1.0 and cap is None:
        return
    assert logits.is_contiguous()
    num_rows, width = logits.shape
    tile = min(_TILE, triton.next_power_of_2(width))
    grid = num_rows, triton.cdiv(width, tile)
    logits_kernel[grid](logits, width=width, tile=tile, scale=scale, cap=cap)
