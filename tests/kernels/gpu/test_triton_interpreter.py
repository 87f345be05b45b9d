"""Triton's interpreter, as tests use it, finds what a GPU would compute wrongly without a word."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from triton_device import CHECKS_WHAT_GPUS_DO, DEVICE


@triton.jit
def offset_kernel(first, second, out):
    tl.store(out, tl.load(first) * 2 + tl.load(second))


@triton.jit
def distance_kernel(first, second, out):
    tl.store(out, tl.load(first) - tl.load(second))


@pytest.mark.skipif(not CHECKS_WHAT_GPUS_DO, reason="of the tests' interpreter alone")
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


@triton.jit
def ways_kernel(limits, numbers, out, width: tl.constexpr):
    """Programs go ways of different lengths, in branches and in loops, after they have stored."""
    row, column = tl.program_id(0), tl.program_id(1)
    own = row * tl.num_programs(1) + column
    place = own * width + tl.arange(0, width)
    for _ in range(2):  # once each, however often a way parts
        tl.store(numbers + place, tl.load(numbers + place) + 1)
    total = tl.zeros((width,), tl.float32)
    if column == 1:
        for number in range(row, tl.load(limits + row), 2):
            total += tl.load(numbers + place) * number
    elif tl.load(numbers + own * width) > 0.0:
        total -= tl.sum(tl.load(numbers + place), axis=0)
    tl.store(out + place, total)


def test_each_program_goes_its_own_way() -> None:
    rows, columns, width = 37, 3, 4
    limits = torch.arange(rows, dtype=torch.int32, device=DEVICE) * 3 % 11
    numbers = torch.randint(-3, 4, (rows, columns, width), device=DEVICE).float()
    after, out = numbers + 2, torch.full_like(numbers, torch.inf)
    ways_kernel[(rows, columns)](limits, numbers, out, width)
    assert torch.equal(numbers, after)
    expected = torch.where(after[:, :, :1] > 0, -after.sum(2, keepdim=True), 0.0).expand_as(after)
    expected = expected.clone()
    for row, limit in enumerate(limits.tolist()):
        expected[row, 1] = after[row, 1] * sum(range(row, limit, 2))
    assert torch.equal(out, expected)


@triton.jit
def corners_kernel(numbers, out, width: tl.constexpr):
    """What programs have of their own, as numbers and as blocks, meets what all have alike."""
    own, column = tl.program_id(0), tl.arange(0, width)
    left = tl.load(numbers + own)
    block = tl.load(numbers + own * width + column)
    whole = (tl.zeros((width, width), tl.float32) + left) * block[:, None] + block
    whole = tl.where(column[:, None] < own, left, tl.minimum(whole, own))
    product = tl.dot(whole, tl.trans(whole), input_precision="ieee")
    highest = tl.max(tl.reshape(product, (width * width,)), axis=0)
    sums = tl.sum(product, axis=1) + tl.cumsum(block, axis=0) + highest
    tl.store(out + own * width + column, sums, mask=column != own % width)


def test_a_program_is_the_same_among_others() -> None:
    rows, width = 21, 16
    numbers = torch.randint(-3, 4, (rows, width), device=DEVICE).float()
    found = torch.full_like(numbers, torch.inf)
    corners_kernel[(rows,)](numbers, found, width)
    for row, block in enumerate(numbers):
        left = numbers.flatten()[row]
        whole = torch.minimum(left * block[:, None] + block, torch.tensor(float(row)))
        whole[: min(row, width)] = left
        product = whole @ whole.T
        expected = product.sum(1) + block.cumsum(0) + product.max()
        expected[row % width] = torch.inf
        torch.testing.assert_close(found[row], expected)


@triton.jit
def pair_kernel(numbers, out):
    tl.store(out, tl.load((numbers + 2).to(tl.pointer_type(tl.float32), bitcast=True)))


@pytest.mark.skipif(not CHECKS_WHAT_GPUS_DO, reason="of the tests' interpreter alone")
def test_an_address_between_two_numbers_is_an_error() -> None:
    numbers = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(AssertionError, match="address is no multiple of 4"):
        pair_kernel[(1,)](numbers, torch.zeros(1))
