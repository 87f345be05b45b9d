"""From the product of a layer's first weight to queries and stored keys and values.

    qkv, one row:   query head 0 … | key head 0 … | value head 0 …
                          │              │               │
                    norm, rotate   norm, rotate          │
                          │              │               │
                        query       the token's slot in the blocks

One program has one token and some of its heads, of whatever kind. A head is read in its own order
and again with the two parts that turn against each other swapped, which lie in the same cache
lines: so no width has to be a power of two, and a head that is not rotated, or in part, is no case
of its own. Where there are sinks, queries are rotated twice: for their own place, and for that from
which they see sinks.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagoda.kernels.gpu.code_form import page_shape
from pagoda.kernels.gpu.head_norms import HeadNorms, row_scale
from pagoda.kernels.gpu.windows import SinkQueries, sink_tensors

_TILE = 1024
"""Numbers that a program has, about."""


@triton.jit
def norm_weights(
    q_norm, k_norm, column, wanted, is_query,
    has_q_norm: tl.constexpr, has_k_norm: tl.constexpr, offset: tl.constexpr,
):  # fmt: skip
    """[heads, columns] float32: of queries or keys, and 1 where none is wanted."""
    weights = tl.where(wanted, 0.0, 1.0)
    if has_q_norm:
        weights += tl.load(q_norm + column, mask=wanted & is_query, other=0.0).to(tl.float32)
    if has_k_norm:
        # Whatever is normed and no query is a key.
        not_query = is_query == 0
        weights += tl.load(k_norm + column, mask=wanted & not_query, other=0.0).to(tl.float32)
    if offset != 0.0:
        weights += tl.where(wanted, offset, 0.0)
    return weights


@triton.jit
def rotated(x, y, column, turns, cosines, sines, position, half: tl.constexpr):
    """x, turned against its partners y where `turns`, by the angles of a position."""
    angle = position.to(tl.int64) * half
    place = tl.where(column < half, column, column - half)
    cosine = tl.load(cosines + angle + place, mask=column < 2 * half, other=1.0)
    sine = tl.load(sines + angle + place, mask=column < 2 * half, other=0.0)
    sine = tl.where(column < half, -sine, sine)
    return tl.where(turns, x * cosine + y * sine, x)


@triton.jit
def rotary_kernel(
    query, qkv, blocks, positions, slot_mapping, cosines, sines, q_norm, k_norm, eps,
    sink_query, sink_positions,
    q_heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr,
    block_size: tl.constexpr, block_numbers: tl.constexpr, half: tl.constexpr,
    has_q_norm: tl.constexpr, has_k_norm: tl.constexpr, norms_rows: tl.constexpr,
    norm_offset: tl.constexpr, heads_tile: tl.constexpr, dim_tile: tl.constexpr,
):  # fmt: skip
    """See `rotate_and_store`; the tiles are powers of two, dim_tile from head_dim on."""
    token = tl.program_id(0).to(tl.int64)
    heads: tl.constexpr = q_heads + 2 * kv_heads
    head = (tl.program_id(1) * heads_tile + tl.arange(0, heads_tile))[:, None]
    column = tl.arange(0, dim_tile)[None, :]
    is_query = head < q_heads
    is_key = (head >= q_heads) & (head < q_heads + kv_heads)
    inside = (head < heads) & (column < head_dim)

    row = qkv + token * (heads * head_dim) + head * head_dim
    x = tl.load(row + column, mask=inside, other=0.0).to(tl.float32)
    partner = tl.where(column < half, column + half, column - half)
    turns = (column < 2 * half) & (is_query | is_key) & inside

    normed = (is_query & has_q_norm) | (is_key & has_k_norm)
    if has_q_norm or has_k_norm:
        if norms_rows:
            queries = qkv + token * (heads * head_dim)
            first = tl.program_id(1) * heads_tile
            has_keys = (first + heads_tile > q_heads) & (first < q_heads + kv_heads)
            q_scale = row_scale(queries, q_heads * head_dim, eps, first < q_heads)
            k_scale = row_scale(queries + q_heads * head_dim, kv_heads * head_dim, eps, has_keys)
            scale = tl.where(is_query, q_scale, k_scale)
            # Weights lie head by head.
            weights = tl.where(is_query, head, head - q_heads) * head_dim
        else:
            scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / head_dim + eps)[:, None]
            weights = 0
        x *= tl.where(normed, scale, 1.0)
        x *= norm_weights(
            q_norm, k_norm, weights + column, inside & normed, is_query, has_q_norm, has_k_norm,
            norm_offset,
        )  # fmt: skip

    as_query = token * (q_heads * head_dim) + head * head_dim + column
    far = x
    if half > 0:
        y = tl.load(row + partner, mask=turns, other=0.0).to(tl.float32)
        if has_q_norm or has_k_norm:
            y *= tl.where(normed, scale, 1.0)
            y *= norm_weights(
                q_norm, k_norm, weights + partner, turns & normed, is_query, has_q_norm, has_k_norm,
                norm_offset,
            )  # fmt: skip
        if sink_query is not None:
            position = tl.load(sink_positions + token)
            far = rotated(x, y, column, turns, cosines, sines, position, half)
        position = tl.load(positions + token)
        x = rotated(x, y, column, turns, cosines, sines, position, half)

    tl.store(query + as_query, x.to(query.dtype.element_ty), mask=inside & is_query)
    if sink_query is not None:
        tl.store(sink_query + as_query, far.to(query.dtype.element_ty), mask=inside & is_query)

    slot = tl.load(slot_mapping + token)
    block, offset = slot // block_size, slot % block_size
    # Key and value heads of a block lie one after the other, as they do in a row of qkv.
    in_block = ((head - q_heads) * block_size + offset) * head_dim + column
    stored = inside & (head >= q_heads) & (slot >= 0)
    to_block = blocks + block * block_numbers + in_block
    tl.store(to_block, x.to(blocks.dtype.element_ty), mask=stored)


def rotate_and_store(
    query: Tensor, qkv: Tensor, blocks: Tensor, positions: Tensor, slot_mapping: Tensor,
    cosines: Tensor, sines: Tensor, norms: HeadNorms, sinks: SinkQueries | None = None,
) -> None:  # fmt: skip
    """Write rotated queries to query: [T, Hq, D], and keys, rotated, and values to their slots.

    qkv: [T, (Hq + 2 Hkv) · D]; blocks: [num_blocks, 2, Hkv, block_size, D], a block's numbers side
    by side; positions: [T] int32; slot_mapping: [T] int64, distinct, -1: nothing is stored;
    cosines, sines: [positions, half] float32: value i < half turns against value i + half, the
    others stay; norms: of queries and keys before that; sinks: where queries go once more, as from
    elsewhere. All are contiguous. Computed in float32.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, block_size, block_numbers = page_shape(blocks, None)
    total_heads = num_heads + 2 * num_kv_heads
    assert qkv.shape == (num_tokens, total_heads * head_dim)
    assert blocks.shape[4] == head_dim
    assert positions.shape == slot_mapping.shape == (num_tokens,)
    assert 2 * cosines.shape[1] <= head_dim
    tensors = (query, qkv, positions, slot_mapping, cosines, sines)
    assert all(each.is_contiguous() for each in tensors)
    norms.require_widths(num_heads, num_kv_heads, head_dim)
    dim_tile = triton.next_power_of_2(head_dim)
    heads_tile = min(max(1, _TILE // dim_tile), triton.next_power_of_2(total_heads))
    # Where there is no norm any address will do: it is not read.
    rotary_kernel[(num_tokens, triton.cdiv(total_heads, heads_tile))](
        query, qkv, blocks, positions, slot_mapping, cosines, sines,
        cosines if norms.query is None else norms.query,
        cosines if norms.key is None else norms.key, norms.eps,
        *sink_tensors(sinks, query),
        q_heads=num_heads, kv_heads=num_kv_heads, head_dim=head_dim, block_size=block_size,
        block_numbers=block_numbers, half=cosines.shape[1],
        has_q_norm=norms.query is not None, has_k_norm=norms.key is not None,
        norms_rows=norms.of_rows, norm_offset=norms.weight_offset, heads_tile=heads_tile,
        dim_tile=dim_tile,
    )  # fmt: skip
