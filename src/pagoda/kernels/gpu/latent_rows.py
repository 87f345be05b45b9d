"""From the products of latent attention to stored latents, and what of queries is rotated.

    down, one row:    latent | shared key          queries, one row:   head 0: plain | turned | …
                        │          │                                              │
                 norm (encode)   rotate                                        rotate
                        │          │                                              │
                      the token's slot in the blocks           the last numbers of each head's query

One program has one token, and its latent and key or some of its heads. What is plain of queries
goes through `head_product`. Computed in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pagoda.kernels.gpu.encode import scaled_codes
from pagoda.kernels.gpu.latent_form import LatentForm, latent_pages
from pagoda.kernels.gpu.rotary import rotated

_TILE = 1024
"""Numbers that a program has of queries, about."""


@triton.jit
def turned_heads(
    query, rows, position, cosines, sines, first,
    num_heads: tl.constexpr, query_dim: tl.constexpr, width: tl.constexpr, half: tl.constexpr,
    heads_tile: tl.constexpr, rope_tile: tl.constexpr,
):  # fmt: skip
    """The last 2 · half numbers of heads from `first` on: rotated, from `rows` to `query`."""
    head = (first + tl.arange(0, heads_tile))[:, None]
    column = tl.arange(0, rope_tile)[None, :]
    inside = (head < num_heads) & (column < 2 * half)
    source = rows + head * query_dim + (query_dim - 2 * half)
    partner = tl.where(column < half, column + half, column - half)
    x = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(source + partner, mask=inside, other=0.0).to(tl.float32)
    x = rotated(x, y, column, inside, cosines, sines, position, half)
    target = query + head * width + (width - 2 * half) + column
    tl.store(target, x.to(query.dtype.element_ty), mask=inside)


@triton.jit
def made_latent(
    down, norm, eps, position, cosines, sines,
    rank: tl.constexpr, half: tl.constexpr, rank_tile: tl.constexpr, rope_tile: tl.constexpr,
):  # fmt: skip
    """A token's latent, normed, [rank_tile] float32 and 0 behind its end; and its key, rotated,
    [rope_tile]."""
    dims = tl.arange(0, rank_tile)
    inside = dims < rank
    latent = tl.load(down + dims, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(latent * latent, axis=0) / rank + eps)
    latent *= scale * tl.load(norm + dims, mask=inside, other=0.0).to(tl.float32)
    column = tl.arange(0, rope_tile)
    inside = column < 2 * half
    partner = tl.where(column < half, column + half, column - half)
    x = tl.load(down + rank + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(down + rank + partner, mask=inside, other=0.0).to(tl.float32)
    return latent, rotated(x, y, column, inside, cosines, sines, position, half)


@triton.jit
def nearest_bfloat16(values):
    """Bits, uint16, ties to even: written out, since Triton's interpreter would cut them off."""
    bits = values.to(tl.int32, bitcast=True)
    return ((bits + 32767 + ((bits >> 16) & 1)) >> 16).to(tl.uint16)


@triton.jit
def store_latent(
    blocks, slot, latent, key,
    rank: tl.constexpr, half: tl.constexpr, block_size: tl.constexpr, block_numbers: tl.constexpr,
    rank_tile: tl.constexpr, rope_tile: tl.constexpr, group_tile: tl.constexpr,
    form: tl.constexpr,
):  # fmt: skip
    """Store a latent and a key in their slot, if there is one."""
    block, in_block = blocks + slot // block_size * block_numbers, slot % block_size
    column = tl.arange(0, rope_tile)
    in_key = (column < 2 * half) & (slot >= 0)
    if form is None:
        place = block + in_block * (rank + 2 * half)
        dims = tl.arange(0, rank_tile)
        in_latent = (dims < rank) & (slot >= 0)
        tl.store(place + dims, latent.to(blocks.dtype.element_ty), mask=in_latent)
        tl.store(place + rank + column, key.to(blocks.dtype.element_ty), mask=in_key)
    else:
        groups: tl.constexpr = rank_tile // group_tile
        group = tl.arange(0, groups)
        dims = group[:, None] * group_tile + tl.arange(0, group_tile)[None, :]
        wanted = (group < form.num_groups) & (slot >= 0)
        scales_at = block + (form.scales + in_block * (form.num_groups * form.scale_bytes))
        codes = scaled_codes(
            tl.reshape(latent, (groups, group_tile)), scales_at + group * form.scale_bytes, wanted,
            form,
        )  # fmt: skip
        place = block + in_block * rank + dims
        tl.store(place, codes.to(tl.uint8), mask=wanted[:, None] & (dims < rank))
        key_at = block + (form.shared + in_block * (4 * half))
        halves = key_at.to(tl.pointer_type(tl.uint16), bitcast=True)
        tl.store(halves + column, nearest_bfloat16(key), mask=in_key)


@triton.jit
def latent_rows_kernel(
    query, rows, down, blocks, positions, slot_mapping, cosines, sines, norm, eps,
    num_heads: tl.constexpr, query_dim: tl.constexpr, rank: tl.constexpr, half: tl.constexpr,
    block_size: tl.constexpr, block_numbers: tl.constexpr, heads_tile: tl.constexpr,
    rank_tile: tl.constexpr, rope_tile: tl.constexpr, group_tile: tl.constexpr,
    form: tl.constexpr,
):  # fmt: skip
    """See `rotate_and_store_latents`; tiles are powers of two."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width: tl.constexpr = rank + 2 * half
    position = tl.load(positions + token)
    if part == 0:
        latent, key = made_latent(
            down + token * width, norm, eps, position, cosines, sines, rank, half, rank_tile,
            rope_tile,
        )  # fmt: skip
        store_latent(
            blocks, tl.load(slot_mapping + token), latent, key, rank, half, block_size,
            block_numbers, rank_tile, rope_tile, group_tile, form,
        )  # fmt: skip
    else:
        turned_heads(
            query + token * (num_heads * width), rows + token * (num_heads * query_dim), position,
            cosines, sines, (part - 1) * heads_tile, num_heads, query_dim, width, half, heads_tile,
            rope_tile,
        )  # fmt: skip


def rotate_and_store_latents(
    query: Tensor, rows: Tensor, down: Tensor, blocks: Tensor, positions: Tensor,
    slot_mapping: Tensor, cosines: Tensor, sines: Tensor, norm: Tensor, eps: float,
    form: LatentForm | None = None,
) -> None:  # fmt: skip
    """Write what of queries is rotated to the end of each, and latents and keys to their slots.

    rows: [T, H, nope + R], whose last R numbers are rotated to the last R of query: [T, H, r + R];
    its others stay. down: [T, r + R]: latents, which are normed, and keys, which are rotated.
    blocks: [num_blocks, block_size, r + R], a block's numbers side by side; positions: [T] int32;
    slot_mapping: [T] int64, distinct, -1: nothing is stored; cosines, sines: [positions, R / 2]
    float32: value i turns against value i + R / 2; norm: [r]. All are contiguous. form:
    blocks are [num_blocks, bytes] uint8 of it.
    """
    num_tokens, num_heads, width = query.shape
    half = cosines.shape[1]
    rank, query_dim = width - 2 * half, rows.shape[2]
    block_size, block_numbers = latent_pages(blocks, width, form)
    assert rows.shape[:2] == (num_tokens, num_heads)
    assert query_dim >= 2 * half > 0
    assert down.shape == (num_tokens, width)
    assert norm.shape == (rank,)
    assert positions.shape == slot_mapping.shape == (num_tokens,)
    tensors = (query, rows, down, positions, slot_mapping, cosines, sines, norm)
    assert all(each.is_contiguous() for each in tensors)
    rope_tile = triton.next_power_of_2(2 * half)
    rank_tile = triton.next_power_of_2(rank)
    heads_tile = min(max(1, _TILE // rope_tile), triton.next_power_of_2(num_heads))
    latent_rows_kernel[(num_tokens, 1 + triton.cdiv(num_heads, heads_tile))](
        query, rows, down, blocks, positions, slot_mapping, cosines, sines, norm, eps,
        num_heads=num_heads, query_dim=query_dim, rank=rank, half=half, block_size=block_size,
        block_numbers=block_numbers, heads_tile=heads_tile,
        rank_tile=rank_tile, rope_tile=rope_tile,
        group_tile=0 if form is None else min(form.group_size, rank_tile), form=form,
    )  # fmt: skip
