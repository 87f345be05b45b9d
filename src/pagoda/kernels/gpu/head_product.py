"""Products of each head with a matrix of its own: queries absorbed, and values made of latents.

    absorbed[t, h] = query[t, h] · key_up[h]        value[t, h] = latent[t, h] · value_up[h]ᵀ

A program has a tile of tokens of one head and some columns, and adds up along the whole depth in
float32. Tiles are of one shape, however many tokens there are: a row's result is its own.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ROWS = 64
"""Of a tile: the fewest that the matrix units of Hopper take. Few tokens leave most of them idle,
but these wait for the weights anyway."""
_COLUMNS = 128
_STEP_BYTES = 128
"""Of the depth, at once."""


@triton.jit(do_not_specialize=["num_rows"])
def head_product_kernel(
    out, x, weight, num_rows,
    out_row: tl.constexpr, out_head: tl.constexpr, x_row: tl.constexpr, x_head: tl.constexpr,
    weight_head: tl.constexpr, weight_depth: tl.constexpr, weight_column: tl.constexpr,
    width: tl.constexpr, depth: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    step: tl.constexpr,
):  # fmt: skip
    """See `head_product`; the last but the tile's three are widths and strides in numbers."""
    head = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    is_row, is_column = (row < num_rows)[:, None], (column < width)[None, :]
    own = x + head * x_head + row.to(tl.int64)[:, None] * x_row
    lines = weight + head * weight_head + column[None, :] * weight_column
    sums = tl.zeros((rows, columns), tl.float32)
    for start in range(0, depth, step):
        k = start + tl.arange(0, step)
        in_x, in_weight = is_row, is_column
        if depth % step != 0:
            in_x, in_weight = in_x & (k < depth)[None, :], in_weight & (k < depth)[:, None]
        part = tl.load(own + k[None, :], mask=in_x, other=0.0)
        line = tl.load(lines + k[:, None] * weight_depth, mask=in_weight, other=0.0)
        sums = tl.dot(part, line, sums, input_precision="ieee")
    places = out + head * out_head + row.to(tl.int64)[:, None] * out_row + column[None, :]
    tl.store(places, sums.to(out.dtype.element_ty), mask=is_row & is_column)


def head_product(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """out[t, h] = x[t, h] · weight[h]: [T, H, n] from [T, H, m] and [H, m, n], all of one dtype.

    The numbers of each vector of out and x lie together; weight may be turned.
    """
    num_rows, num_heads, depth = x.shape
    width = weight.shape[2]
    assert out.shape == (num_rows, num_heads, width)
    assert weight.shape[:2] == (num_heads, depth)
    assert out.stride(2) == x.stride(2) == 1
    step = _STEP_BYTES // x.element_size()
    grid = triton.cdiv(num_rows, _ROWS), triton.cdiv(width, _COLUMNS), num_heads
    head_product_kernel[grid](
        out, x, weight, num_rows,
        out_row=out.stride(0), out_head=out.stride(1), x_row=x.stride(0), x_head=x.stride(1),
        weight_head=weight.stride(0), weight_depth=weight.stride(1),
        weight_column=weight.stride(2), width=width, depth=depth, rows=_ROWS, columns=_COLUMNS,
        step=step, num_warps=4 if x.element_size() <= 2 else 8, num_stages=2,
    )  # fmt: skip
