"""Matrix products whose rows do not see one another: a row's bits are the same in any batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from pagoda.execution.buffer import Buffer
from pagoda.kernels.cpu.project import project
from pagoda.storage.kv_storage import as_array


class Linear(Protocol):
    """y = x · weightᵀ + bias."""

    in_width: int
    out_width: int

    def __call__(self, out: Buffer, x: Buffer) -> None:
        """Write the product of x, [rows, in_width], to out, [rows, out_width]."""
        ...


class BFloat16Linear:
    """Through PyTorch, that is oneDNN, which leaves every other product far behind."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_width, self.in_width = weight.shape
        self._weight = weight.t()
        self._bias = bias

    def __call__(self, out: Buffer, x: Buffer) -> None:
        # Padded, for a lone row is summed in another order than many at some shapes.
        if self._bias is None:
            torch.mm(x.padded, self._weight, out=out.padded)
        else:
            torch.addmm(self._bias, x.padded, self._weight, out=out.padded)


class Float32Linear:
    """Through a kernel of our own: PyTorch's takes longer and sums few rows in other orders."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_width, self.in_width = weight.shape
        self._weight = as_array(weight)
        self._bias = bias

    def __call__(self, out: Buffer, x: Buffer) -> None:
        project(out.array, x.array, self._weight)
        if self._bias is not None:
            out.tensor.add_(self._bias)


_LINEARS: Mapping[torch.dtype, Callable[[torch.Tensor, torch.Tensor | None], Linear]] = {
    torch.bfloat16: BFloat16Linear,
    torch.float32: Float32Linear,
}


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The product for a weight as checkpoints hold it, [out, in]; nothing is copied."""
    return _LINEARS[weight.dtype](weight, bias)
