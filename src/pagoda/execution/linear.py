"""A matrix product whose rows do not see one another."""

from __future__ import annotations

from dataclasses import dataclass

import torch


def padded_rows(num_rows: int, dtype: torch.dtype) -> int:
    """Rows to give to a product so that a row's bits are the same in any batch.

    Seen with oneDNN and MKL: a lone bfloat16 row may be summed in another order than many. So are
    float32 rows past the last multiple of four in products of less than twelve rows, where eight
    rows are also faster than four.
    """
    if dtype == torch.bfloat16:
        return max(num_rows, 2)
    if num_rows <= 8:
        return 8
    return max(num_rows, 12)


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x · weight + bias."""

    weight: torch.Tensor
    """[in, out]"""
    bias: torch.Tensor | None = None
    """[out]"""

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """From a weight as checkpoints hold it, [out, in]; nothing is copied."""
        return cls(weight.t(), bias)

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.weight.shape[1]

    def __call__(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Write the product of x, [rows, in], to out, [rows, out]. Both have padded rows."""
        if self.bias is None:
            torch.mm(x, self.weight, out=out)
        else:
            torch.addmm(self.bias, x, self.weight, out=out)
