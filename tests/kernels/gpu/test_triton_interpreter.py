"""Triton's interpreter, as tests use it, finds what a GPU would compute wrongly without a word."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from triton_device import DEVICE, HAS_GPU


@triton.jit
def offset_kernel(first, second, out):
    tl.store(out, tl.load(first) * 2 + tl.load(second))


@triton.jit
def distance_kernel(first, second, out):
    tl.store(out, tl.load(first) - tl.load(second))


@pytest.mark.skipif(HAS_GPU, reason="kernels are compiled where there is a GPU")
@pytest.mark.parametrize(
    ("kernel", "operation", "first", "second"),
    [
        (offset_kernel, "mul", 2**30, 0),
        (offset_kernel, "add", 2**30 - 1, 2),
        (offset_kernel, "add", -(2**30), -1),
        (distance_kernel, "sub", -2, 2**31 - 1),
    ],
)
def test_an_offset_that_does_not_fit_is_an_error(kernel, operation, first, second) -> None:
    numbers = [torch.tensor([each], dtype=torch.int32) for each in (first, second, 0)]
    with pytest.raises(Exception, match=f"{operation} overflows int32"):
        kernel[(1,)](*numbers)


def test_the_largest_that_fits_is_computed() -> None:
    numbers = [torch.tensor([each], dtype=torch.int32, device=DEVICE) for each in (2**30 - 1, 1, 0)]
    offset_kernel[(1,)](*numbers)
    assert numbers[-1].item() == 2**31 - 1
