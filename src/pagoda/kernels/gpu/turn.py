"""Vectors times a square matrix of their KV head: the change of basis that a codec asks for.

Products are in float32, on NVIDIA from three products of tensor units each. A program has so few
rows that a GPU takes the same instructions for any number of them: a row's result is its own.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagoda.kernels.gpu.attention_tile import ON_AMD

TURN_ROWS = 32
"""Rows of a program."""
DEPTH = tl.constexpr(32)
"""Numbers of a vector that are multiplied at a time."""
PRECISION = tl.constexpr("ieee" if ON_AMD else "tf32x3")


@triton.jit
def matrix_lines(matrix, depth, head_dim: tl.constexpr, padded_dim: tl.constexpr):
    """Lines [depth] of a matrix, padded with zeros."""
    dims = tl.arange(0, padded_dim)
    inside = (depth < head_dim)[:, None] & (dims < head_dim)[None, :]
    return tl.load(matrix + depth[:, None] * head_dim + dims[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["num_rows"])
def turn_kernel(
    x, matrices, num_rows, matrix_stride,
    num_kv_heads: tl.constexpr, group_size: tl.constexpr, head_dim: tl.constexpr,
    padded_dim: tl.constexpr, tile_rows: tl.constexpr,
):  # fmt: skip
    """See `turn_heads`: a program has rows, a token and a head of the group each, of a KV head."""
    kv_head = tl.program_id(1)
    own = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    token, head = (own // group_size).to(tl.int64), kv_head * group_size + own % group_size
    rows = x + (token * (num_kv_heads * group_size) + head)[:, None] * head_dim
    used = (own < num_rows)[:, None]
    matrix = matrices + kv_head.to(tl.int64) * matrix_stride
    turned = tl.zeros((tile_rows, padded_dim), tl.float32)
    for start in range(0, head_dim, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        part = tl.load(rows + depth[None, :], mask=used & (depth < head_dim)[None, :], other=0.0)
        lines = matrix_lines(matrix, depth, head_dim, padded_dim)
        turned = tl.dot(part.to(tl.float32), lines, turned, input_precision=PRECISION)
    dims = tl.arange(0, padded_dim)
    inside = used & (dims < head_dim)[None, :]
    tl.store(rows + dims[None, :], turned.to(x.dtype.element_ty), mask=inside)


def turn_warps(head_dim: int) -> int:
    """Warps of a program, whose registers hold all columns of its rows."""
    return 4 if head_dim <= 128 else 8


def turn_heads(x: Tensor, matrices: Tensor) -> None:
    """x[t, h] = x[t, h] · matrix of its KV head, in place.

    x: [T, Hq, D], contiguous; matrices: [Hkv, D, D] float32, each contiguous.
    """
    num_tokens, num_heads, head_dim = x.shape
    num_kv_heads = len(matrices)
    assert x.is_contiguous()
    assert matrices.shape[1:] == (head_dim, head_dim)
    assert matrices.stride()[1:] == (head_dim, 1)
    num_rows = num_tokens * (num_heads // num_kv_heads)
    turn_kernel[(triton.cdiv(num_rows, TURN_ROWS), num_kv_heads)](
        x, matrices, num_rows, matrices.stride(0),
        num_kv_heads=num_kv_heads, group_size=num_heads // num_kv_heads, head_dim=head_dim,
        padded_dim=triton.next_power_of_2(head_dim), tile_rows=TURN_ROWS,
        num_warps=turn_warps(head_dim), num_stages=2,
    )  # fmt: skip
