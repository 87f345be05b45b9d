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


@triton.jit
def shapes_kernel(numbers, out, height: tl.constexpr, width: tl.constexpr):
    rows, columns = tl.arange(0, height)[:, None], tl.arange(0, width)[None, :]
    places = rows * width + columns
    top, corner = tl.load(numbers + columns), tl.load(numbers)
    values = tl.load(numbers + places, mask=columns < width - 1, other=corner)
    left = tl.load(numbers + rows * width)
    chosen = tl.where(rows < columns, corner, top)
    shifted = tl.where(left > corner, 1 - values, top * left)
    halves = (corner / 2 + places).to(tl.float16) / (places + 3).to(tl.float16)
    kept = (left == top) | (places % 3 == 0)
    tl.store(places + out, chosen - shifted + halves, mask=kept)


def test_numbers_rows_and_columns_meet_as_broadcast() -> None:
    """What is left and right of an operation, and of other types: each as PyTorch has it."""
    rows, columns = 4, 8
    numbers = torch.randint(-3, 4, (rows, columns), device=DEVICE).float()
    found = torch.full_like(numbers, torch.inf)
    shapes_kernel[(1,)](numbers, found, rows, columns)
    places = torch.arange(rows * columns, device=DEVICE).view(rows, columns)
    top, left, corner = numbers[:1], numbers[:, :1], numbers[0, 0]
    values = torch.cat([numbers[:, :-1], corner.expand(rows, 1)], 1)
    chosen = torch.where(places // columns < places % columns, corner, top)
    shifted = torch.where(left > corner, 1 - values, top * left)
    halves = (corner / 2 + places).half().float() / (places + 3)
    kept = (left == top) | (places % 3 == 0)
    expected = torch.where(kept, chosen - shifted + halves, torch.inf)
    torch.testing.assert_close(found, expected)
