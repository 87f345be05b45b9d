"""Norms of queries and keys before they are rotated: of each head, or of all heads as one row."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

_TILE = tl.constexpr(1024)


class HeadNorms(NamedTuple):
    """RMS norms: x / sqrt(mean(x²) + eps) · (weight + offset)."""

    query: Tensor | None
    """[D], or [Hq · D] where rows are normed; None: no norm"""
    key: Tensor | None
    """[D], or [Hkv · D] where rows are normed; None: no norm"""
    eps: float
    weight_offset: float = 0.0
    """Added to weights in float32."""
    of_rows: bool = False
    """All heads of a row's queries are normed together, and of its keys."""

    def require_widths(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        """Asserts that weights are as many as heads of this shape need."""
        for weight, heads in ((self.query, num_heads), (self.key, num_kv_heads)):
            if weight is not None:
                assert weight.shape == (heads * head_dim if self.of_rows else head_dim,)
                assert weight.is_contiguous()


NO_NORMS = HeadNorms(None, None, eps=0.0)


@triton.jit
def row_scale(row, width: tl.constexpr, eps, wanted):
    """1 / sqrt(mean(x²) + eps) of `width` numbers from a pointer on; any number if not wanted."""
    squares = tl.zeros((_TILE,), tl.float32)
    for start in range(0, width, _TILE):
        column = start + tl.arange(0, _TILE)
        x = tl.load(row + column, mask=wanted & (column < width), other=0.0).to(tl.float32)
        squares += x * x
    return 1.0 / tl.sqrt(tl.sum(squares, axis=0) / width + eps)


@triton.jit
def scales_of_rows(
    rows, used, head, eps,
    num_heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
):  # fmt: skip
    """1 / sqrt(mean(x²) + eps), [rows], of the heads from rows, pointers [rows], on.

    num_heads: how many are normed together, of which `head` is the one that rows point to; 0: it
    is normed for itself.
    """
    dims = tl.arange(0, padded_dim)
    inside = used[:, None] & (dims < head_dim)[None, :]
    if num_heads == 0:
        x = tl.load(rows[:, None] + dims[None, :], mask=inside, other=0.0).to(tl.float32)
        scales = 1.0 / tl.sqrt(tl.sum(x * x, 1) / head_dim + eps)
    else:
        first = rows - head * head_dim
        squares = tl.zeros((rows.shape[0],), tl.float32)
        for other in range(num_heads):
            each = first + other * head_dim
            x = tl.load(each[:, None] + dims[None, :], mask=inside, other=0.0).to(tl.float32)
            squares += tl.sum(x * x, 1)
        scales = 1.0 / tl.sqrt(squares / (num_heads * head_dim) + eps)
    return scales
