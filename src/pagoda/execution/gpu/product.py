"""Products with weights, through PyTorch's libraries, into memory that is there."""

from __future__ import annotations

import torch


def product(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """Write x · weightᵀ + bias to `out` [T, n]; x: [T, m], weight: [n, m], all of one dtype."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def product_in_float32(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Write x · weightᵀ to `out` [T, n] float32; x: [T, m] and weight: [n, m] of one dtype.

    The library for NVIDIA's GPUs writes the sums as it has them, in float32. Elsewhere they may be
    rounded to x's dtype before, in memory taken for that.
    """
    if x.dtype == torch.float32:
        torch.mm(x, weight.t(), out=out)
    elif x.is_cuda and torch.version.hip is None:
        torch.mm(x, weight.t(), out_dtype=torch.float32, out=out)
    elif x.is_cuda:
        out.copy_(torch.mm(x, weight.t()))
    else:
        torch.mm(x.float(), weight.t().float(), out=out)
