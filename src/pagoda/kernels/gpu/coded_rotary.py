"""From the product of a layer's first weight to queries, and keys and values in codes.

As `rotary` for plain caches, but a program has one head and several tokens: what a codec turns is
multiplied with the head's matrix, part by part as it is rotated. Nothing is rounded on the way.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagoda.kernels.gpu.code_form import PageCodes, keys_of, values_of
from pagoda.kernels.gpu.encode import store_vectors
from pagoda.kernels.gpu.head_norms import HeadNorms, scales_of_rows
from pagoda.kernels.gpu.turn import DEPTH, PRECISION, TURN_ROWS, matrix_lines, turn_warps
from pagoda.kernels.gpu.windows import SinkQueries, sink_tensors

_PATH_ROWS = 16
"""Rows of a program that looks for paths: with twice the warps, its registers hold what that takes.
"""


@triton.jit
def norm_weights(norm, column, inside, offset: tl.constexpr):
    """Columns [columns] of a norm's weights, float32."""
    weights = tl.load(norm + column, mask=inside, other=0.0).to(tl.float32)
    if offset != 0.0:
        weights += offset
    return weights


@triton.jit
def rotated_part(
    rows, column, used, angles, cosines, sines, norm, scales,
    norm_offset: tl.constexpr, half: tl.constexpr, head_dim: tl.constexpr,
):  # fmt: skip
    """Columns [columns] of rows, pointers [rows]: normed and rotated, float32, 0 where unused.

    scales: [rows], of the norm. angles: [rows], where a position's cosines begin.
    """
    inside = used[:, None] & (column < head_dim)[None, :]
    x = tl.load(rows[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if norm is not None:
        weights = norm_weights(norm, column, column < head_dim, norm_offset)
        x = x * scales[:, None] * weights[None, :]
    if half > 0:
        turns = column < 2 * half
        both = inside & turns[None, :]
        partner = tl.where(column < half, column + half, column - half)
        y = tl.load(rows[:, None] + partner[None, :], mask=both, other=0.0).to(tl.float32)
        if norm is not None:
            weights = norm_weights(norm, partner, turns, norm_offset)
            y = y * scales[:, None] * weights[None, :]
        places = angles[:, None] + tl.where(column < half, column, column - half)[None, :]
        cosine = tl.load(cosines + places, mask=both, other=1.0)
        sine = tl.load(sines + places, mask=both, other=0.0)
        sine = tl.where((column < half)[None, :], -sine, sine)
        x = tl.where(both, x * cosine + y * sine, x)
    return x


@triton.jit
def turned_rows(
    rows, used, angles, cosines, sines, head, norm, eps, matrices, stride, kv_head,
    normed_heads: tl.constexpr, norm_offset: tl.constexpr, half: tl.constexpr,
    head_dim: tl.constexpr, padded_dim: tl.constexpr,
):  # fmt: skip
    """[rows, padded_dim] float32: normed, rotated, and times their head's matrix if there are any.

    head: among the queries or keys, of which so many are normed together; 0: each for itself.
    stride: numbers from head to head of the matrices.
    """
    dims = tl.arange(0, padded_dim)
    scales, weights = None, norm
    if norm is not None:
        scales = scales_of_rows(rows, used, head, eps, normed_heads, head_dim, padded_dim)
        if normed_heads > 0:
            weights = norm + head * head_dim
    if matrices is None:
        turned = rotated_part(
            rows, dims, used, angles, cosines, sines, weights, scales, norm_offset, half, head_dim
        )
    else:
        matrix = matrices + kv_head.to(tl.int64) * stride
        turned = tl.zeros((rows.shape[0], padded_dim), tl.float32)
        for start in range(0, head_dim, DEPTH):
            depth = start + tl.arange(0, DEPTH)
            part = rotated_part(
                rows, depth, used, angles, cosines, sines, weights, scales, norm_offset, half,
                head_dim,
            )  # fmt: skip
            lines = matrix_lines(matrix, depth, head_dim, padded_dim)
            turned = tl.dot(part, lines, turned, input_precision=PRECISION)
    return turned


@triton.jit
def store_queries(
    query, token, head, rows, used, angles, cosines, sines, norm, eps, matrices, stride,
    q_heads: tl.constexpr, group_size: tl.constexpr, normed_heads: tl.constexpr,
    norm_offset: tl.constexpr, half: tl.constexpr, head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):  # fmt: skip
    """Store rotated and turned rows as queries of a head."""
    x = turned_rows(
        rows, used, angles, cosines, sines, head, norm, eps, matrices, stride, head // group_size,
        normed_heads, norm_offset, half, head_dim, padded_dim,
    )  # fmt: skip
    dims = tl.arange(0, padded_dim)
    places = (token * q_heads + head)[:, None] * head_dim + dims[None, :]
    inside = used[:, None] & (dims < head_dim)[None, :]
    tl.store(query + places, x.to(query.dtype.element_ty), mask=inside)


@triton.jit
def store_coded(
    blocks, slots, kv_head, rows, used, angles, cosines, sines, norm, eps, matrices, stride,
    levels, bounds, weights, block_bytes: tl.constexpr, block_size: tl.constexpr,
    normed_heads: tl.constexpr, norm_offset: tl.constexpr, half: tl.constexpr,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """Store rotated and turned rows as codes of a head, in their slots."""
    x = turned_rows(
        rows, used, angles, cosines, sines, kv_head, norm, eps, matrices, stride, kv_head,
        normed_heads, norm_offset, half, head_dim, padded_dim,
    )  # fmt: skip
    store_vectors(
        x, slots >= 0, blocks + slots // block_size * block_bytes, slots % block_size, kv_head,
        levels, bounds, weights, block_size, head_dim, form,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_tokens"])
def coded_rotary_kernel(
    query, qkv, blocks, positions, slot_mapping, cosines, sines, q_norm, k_norm, eps,
    sink_query, sink_positions,
    query_turn, key_turn, value_turn, query_stride, key_stride, value_stride,
    key_levels, key_bounds, key_weights, value_levels, value_bounds, value_weights, num_tokens,
    q_heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr,
    padded_dim: tl.constexpr, block_size: tl.constexpr, half: tl.constexpr,
    tile_rows: tl.constexpr, form: tl.constexpr, norms_rows: tl.constexpr,
    norm_offset: tl.constexpr,
):  # fmt: skip
    """See `rotate_and_encode`."""
    head = tl.program_id(1)
    own = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    used = own < num_tokens
    token = own.to(tl.int64)
    rows = qkv + (token * (q_heads + 2 * kv_heads) + head) * head_dim
    angles = tl.load(positions + own, mask=used, other=0).to(tl.int64) * half
    slots = tl.load(slot_mapping + own, mask=used, other=-1)
    if head < q_heads:
        store_queries(
            query, token, head, rows, used, angles, cosines, sines, q_norm, eps,
            query_turn, query_stride, q_heads, q_heads // kv_heads, q_heads * norms_rows,
            norm_offset, half, head_dim, padded_dim,
        )  # fmt: skip
        if sink_query is not None:
            turns = tl.load(sink_positions + own, mask=used, other=0).to(tl.int64) * half
            store_queries(
                sink_query, token, head, rows, used, turns, cosines, sines, q_norm, eps,
                query_turn, query_stride, q_heads, q_heads // kv_heads, q_heads * norms_rows,
                norm_offset, half, head_dim, padded_dim,
            )  # fmt: skip
    elif head < q_heads + kv_heads:
        store_coded(
            blocks, slots, head - q_heads, rows, used, angles, cosines, sines, k_norm, eps,
            key_turn, key_stride, key_levels, key_bounds, key_weights,
            form.block_bytes, block_size, kv_heads * norms_rows, norm_offset, half, head_dim,
            padded_dim, keys_of(form),
        )  # fmt: skip
    else:
        store_coded(
            blocks, slots, head - q_heads - kv_heads, rows, used, angles, cosines, sines, None, eps,
            value_turn, value_stride, value_levels, value_bounds, value_weights,
            form.block_bytes, block_size, 0, 0.0, 0, head_dim, padded_dim, values_of(form),
        )  # fmt: skip


def rotate_and_encode(
    query: Tensor, qkv: Tensor, blocks: Tensor, positions: Tensor, slot_mapping: Tensor,
    cosines: Tensor, sines: Tensor, norms: HeadNorms, codes: PageCodes,
    sinks: SinkQueries | None = None,
) -> None:  # fmt: skip
    """As `rotate_and_store`, with blocks [num_blocks, bytes] uint8 of codes.

    Queries are turned as they ask for it, too. Computed in float32, which queries alone are rounded
    from.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, form = codes.num_kv_heads, codes.form
    total_heads = num_heads + 2 * num_kv_heads
    assert qkv.shape == (num_tokens, total_heads * head_dim)
    assert blocks.shape[1] == form.block_bytes
    assert codes.key.code.head_size == codes.value.code.head_size == head_dim
    assert positions.shape == slot_mapping.shape == (num_tokens,)
    assert 2 * cosines.shape[1] <= head_dim
    tensors = (query, qkv, blocks, positions, slot_mapping, cosines, sines)
    assert all(each.is_contiguous() for each in tensors)
    norms.require_widths(num_heads, num_kv_heads, head_dim)
    turns = (codes.query_turn, codes.key.turn, codes.value.turn)
    assert all(turn is None or turn.stride()[1:] == (head_dim, 1) for turn in turns)
    rows, num_warps = TURN_ROWS, turn_warps(head_dim)
    if form.has_paths:
        rows, num_warps = _PATH_ROWS, 2 * num_warps
    coded_rotary_kernel[(triton.cdiv(num_tokens, rows), total_heads)](
        query, qkv, blocks, positions, slot_mapping, cosines, sines, norms.query, norms.key,
        norms.eps, *sink_tensors(sinks, query),
        *turns, *(0 if turn is None else turn.stride(0) for turn in turns),
        codes.key.levels, codes.key.bounds, codes.key.weights,
        codes.value.levels, codes.value.bounds, codes.value.weights, num_tokens,
        q_heads=num_heads, kv_heads=num_kv_heads, head_dim=head_dim,
        padded_dim=triton.next_power_of_2(head_dim), block_size=codes.block_size,
        half=cosines.shape[1], tile_rows=rows, form=form, norms_rows=norms.of_rows,
        norm_offset=norms.weight_offset,
        num_warps=num_warps, num_stages=2,
    )  # fmt: skip
