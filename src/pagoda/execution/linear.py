"""A matrix product whose rows do not see one another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_MIN_ROWS = {torch.float32: 8, torch.bfloat16: 1}


def padded_rows(num_rows: int, dtype: torch.dtype) -> int:
    """Rows to give to a product at least, so that a row's result is the same in any batch.

    In float32 the library sums one to three rows in another order than many; from there on, and
    in bfloat16 always, a row's bits are the same for any number of rows. Eight rows are also
    faster than four.
    """
    return max(num_rows, _MIN_ROWS[dtype])


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
