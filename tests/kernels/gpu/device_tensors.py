"""Random tensors for the tests of kernels on a device, and how near to the truth they must come."""

from __future__ import annotations

import numpy as np
import torch

from pagoda.kernels.array import Array
from triton_device import DEVICE, HAS_GPU

__all__ = ["DEVICE", "DTYPES", "HAS_GPU", "ROUNDING", "assert_near", "random_tensor", "wide"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# A GPU rounds to the nearest bfloat16; the interpreter cuts the lower bits off.
_BFLOAT16 = 2**-8 if HAS_GPU else 2**-7
ROUNDING = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: _BFLOAT16}
"""Rounding the result once, or float32 arithmetic, relative."""


def random_tensor(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0
) -> torch.Tensor:
    """Normal numbers on the device."""
    return torch.from_numpy(rng.normal(size=shape) * scale).to(DEVICE, dtype)


def wide(x: torch.Tensor) -> Array:
    """The same numbers, float64, on the host."""
    return x.detach().cpu().double().numpy()


def assert_near(got: torch.Tensor, expected: Array, magnitude: float = 1.0) -> None:
    """Each number within a rounding of its own size, or of `magnitude` where terms cancel."""
    allowed = ROUNDING[got.dtype] * np.abs(expected) + 2e-6 * max(1.0, magnitude)
    assert (np.abs(wide(got) - expected) <= allowed).all()
