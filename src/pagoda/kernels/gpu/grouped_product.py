"""Products of rows with the weights of their experts, tile by tile.

A program has a tile of rows of one expert and some columns, and adds up along the whole depth, in
float32 and in ascending order. The shape of a tile follows from the number of rows in the step
alone (`expert_tiles`), and no row's sums look at another's: among as many others, a row's result is
the same to the last bit, whoever they are. Experts without rows have no tile, and are not read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda.kernels.gpu.activation import ACTIVATIONS, gated
from pagoda.kernels.gpu.expert_rows import ExpertRows

_COLUMNS = 128
"""Columns of a tile, of gate and up together."""
_STEP_BYTES = 128
"""Of the depth, at once."""


@triton.jit
def weight_tile(weight, column, k, inside, depth: tl.constexpr):
    """Rows of an expert's weight [columns, depth], turned: [depth, columns]."""
    return tl.trans(
        tl.load(weight + column.to(tl.int64)[:, None] * depth + k[None, :], mask=inside, other=0.0)
    )


@triton.jit
def plus_bias(sums, bias, expert, column, is_column, width: tl.constexpr):
    """The sums and an expert's bias, where there is one."""
    if bias is not None:
        own = tl.load(bias + expert * width + column, mask=is_column, other=0.0)
        sums += own.to(tl.float32)[None, :]
    return sums


@triton.jit
def grouped_kernel(
    out, x, order, tiles, weight, bias, up_weight, up_bias,
    num_used: tl.constexpr, width: tl.constexpr, depth: tl.constexpr, activation: tl.constexpr,
    height: tl.constexpr, columns: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """See `gated_product`, or `grouped_product` where there is no `up_weight`."""
    tile = tiles + tl.program_id(0) * 3
    first, end = tl.load(tile + 1), tl.load(tile + 2)
    if first >= end:
        return
    expert = tl.load(tile).to(tl.int64)
    place = first + tl.arange(0, height)
    is_row = place < end
    pair = tl.load(order + place, mask=is_row, other=0)
    source, target = place, pair
    if up_weight is not None:
        source, target = pair // num_used, place
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    is_column = column < width
    x_rows = x + source.to(tl.int64)[:, None] * depth
    own = expert * width * depth
    sums = tl.zeros((height, columns), tl.float32)
    up_sums = tl.zeros((height, columns), tl.float32)
    for start in range(0, depth, step):
        k = start + tl.arange(0, step)
        in_x, in_weight = is_row[:, None], is_column[:, None]
        if depth % step != 0:
            in_x, in_weight = in_x & (k < depth)[None, :], in_weight & (k < depth)[None, :]
        part = tl.load(x_rows + k[None, :], mask=in_x, other=0.0)
        lines = weight_tile(weight + own, column, k, in_weight, depth)
        sums = tl.dot(part, lines, sums, input_precision="ieee")
        if up_weight is not None:
            lines = weight_tile(up_weight + own, column, k, in_weight, depth)
            up_sums = tl.dot(part, lines, up_sums, input_precision="ieee")
    sums = plus_bias(sums, bias, expert, column, is_column, width)
    if up_weight is not None:
        up_sums = plus_bias(up_sums, up_bias, expert, column, is_column, width)
        sums = gated(sums, up_sums, activation)
    places = out + target.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(places, sums.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def gated_product(
    out: Tensor, x: Tensor, rows: ExpertRows, gate: Tensor, up: Tensor, gate_bias: Tensor | None,
    up_bias: Tensor | None, activation: str,
) -> None:  # fmt: skip
    """Write activation(gate · x) · (up · x) of each pair to its place in `rows.order`.

    out: [P, I]; x: [T, h]; gate and up: [E, I, h], all of one dtype; their biases: [E, I], any
    dtype, or None. All are contiguous. activation: one of `ACTIVATIONS`.
    """
    assert activation in ACTIVATIONS
    assert up.shape == gate.shape
    assert len(x) * rows.num_used == len(out)
    assert all(each.is_contiguous() for each in (up, *_given(up_bias)))
    _launch(out, x, rows, gate, gate_bias, up, up_bias, activation)


def grouped_product(
    out: Tensor, x: Tensor, rows: ExpertRows, weight: Tensor, bias: Tensor | None
) -> None:
    """Write what each pair's expert makes of its row to its number.

    out: [P, h], by pair; x: [P, I], by place in `rows.order`; weight: [E, h, I], all of one dtype;
    bias: [E, h], any dtype, or None. All are contiguous.
    """
    assert len(x) == len(out)
    _launch(out, x, rows, weight, bias, None, None, None)


def _launch(
    out: Tensor, x: Tensor, rows: ExpertRows, weight: Tensor, bias: Tensor | None,
    up: Tensor | None, up_bias: Tensor | None, activation: str | None,
) -> None:  # fmt: skip
    num_experts, width, depth = weight.shape
    assert out.shape == (len(rows.order), width)
    assert x.shape[1] == depth
    assert len(rows.counts) == num_experts
    assert all(each.shape == (num_experts, width) for each in _given(bias, up_bias))
    assert all(each.is_contiguous() for each in (out, x, weight, *_given(bias)))
    columns = _COLUMNS if up is None else _COLUMNS // 2
    grid = rows.num_tiles, triton.cdiv(width, columns)
    grouped_kernel[grid](
        out, x, rows.order, rows.tiles, weight, bias, up, up_bias,
        num_used=rows.num_used, width=width, depth=depth, activation=activation,
        height=rows.height, columns=columns, step=_STEP_BYTES // x.element_size(),
        num_warps=4, num_stages=2 if torch.version.hip else 3,
    )  # fmt: skip


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [each for each in tensors if each is not None]
