"""What attention to latents does with its rows and a tile of tokens; decode and prefill share it.

A block is `[block_size, rank + rope_dim]`: of each token its latent, and behind it the key that all
heads share; or codes, which become numbers of the queries' dtype as they are read. Queries are
absorbed (`head_product`), so all heads meet the same vectors, and values are the latents
themselves: a tile is read once for all rows of a program, and is key and value.

    rows, one behind the other    token 0: head 0, 1, … | token 1: head 0, 1, … | …
    a program                     so many of them, wherever tokens begin

Rows are numbered so in memory as well, so any number of heads fills a program's rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from pagoda.kernels.gpu.attention_tile import (
    NOTHING_YET,
    ON_AMD,
    block_ids_of,
    load_rows,
    weighed,
)
from pagoda.kernels.gpu.latent_form import LatentForm
from pagoda.kernels.gpu.read_codes import own_numbers

_LEAST_WIDTH = 16
"""Numbers of the shortest vectors that a matrix product takes."""


class LatentProgram(NamedTuple):
    """What one program works on at a time; found with the compiler, so that registers suffice."""

    rows: int
    """A token's query of one head each."""
    tile: int
    """Tokens."""
    num_warps: int
    num_stages: int

    @classmethod
    def of(
        cls, num_rows: int, rank: int, dtype: torch.dtype, form: LatentForm | None = None
    ) -> LatentProgram:
        """For so many rows that lie one behind the other. float32 is for comparisons.

        Of latents of 512 numbers, sums of 32 rows take 64 registers of each of 256 threads, and two
        tiles of 32 tokens 72 KiB. Twice as many rows take more registers than there are; so do as
        many, where codes become numbers in registers.
        """
        if dtype.itemsize > 2:
            return cls(16, 16, num_warps=4 if ON_AMD else 8, num_stages=2)
        is_few = num_rows <= 16 or form is not None
        if ON_AMD:
            rows, tile = (16, 32) if is_few else (32, 16)
            return cls(rows, tile, num_warps=4, num_stages=2)
        rows, tile = 16 if is_few else 32, 32 if rank > 256 else 64
        return cls(rows, tile, num_warps=8, num_stages=2)


class LatentWidths(NamedTuple):
    """Numbers of a vector's two parts, and the powers of two that hold them."""

    rank: int
    rope_dim: int
    padded_rank: int
    padded_rope: int

    @classmethod
    def of(cls, rank: int, rope_dim: int) -> LatentWidths:
        """Of latents and shared keys of so many numbers."""
        return cls(rank, rope_dim, padded(rank), padded(rope_dim))


def padded(width: int) -> int:
    """Numbers of a tile for vectors of `width`."""
    return max(_LEAST_WIDTH, triton.next_power_of_2(width))


@triton.jit
def load_queries(
    query, rows, used,
    rank: tl.constexpr, rope_dim: tl.constexpr, padded_rank: tl.constexpr,
    padded_rope: tl.constexpr,
):  # fmt: skip
    """What of queries, rows [rows] int64 of them, meets latents, and what meets shared keys."""
    at = query + rows * (rank + rope_dim)
    absorbed = load_rows(at, used, rank, padded_rank)
    turned = load_rows(at + rank, used, rope_dim, padded_rope)
    return absorbed, turned


@triton.jit
def no_sums(rows: tl.constexpr, padded_rank: tl.constexpr):
    """Sums, mass and highest score before the first tile."""
    sums = tl.zeros((rows, padded_rank), tl.float32)
    return sums, tl.zeros((rows,), tl.float32), tl.full((rows,), NOTHING_YET, tl.float32)


@triton.jit
def plain_latents(
    blocks, block_ids, in_block, readable,
    block_numbers: tl.constexpr, rank: tl.constexpr, rope_dim: tl.constexpr,
    padded_rank: tl.constexpr, padded_rope: tl.constexpr,
):  # fmt: skip
    """Latents and shared keys of a tile of tokens, each `in_block` of its own block."""
    at = blocks + (block_ids.to(tl.int64) * block_numbers + in_block * (rank + rope_dim))
    latents = load_rows(at, readable, rank, padded_rank)
    return latents, load_rows(at + rank, readable, rope_dim, padded_rope)


@triton.constexpr_function
def group_numbers(form, padded_rank):
    """Numbers of a tile that share a scale."""
    return min(form.group_size, padded_rank)


@triton.jit
def coded_latents(
    blocks, block_ids, in_block, readable, dtype: tl.constexpr,
    rank: tl.constexpr, rope_dim: tl.constexpr, padded_rank: tl.constexpr,
    padded_rope: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """As `plain_latents`, of codes: a level times its group's scale, rounded to dtype once."""
    block = blocks + block_ids.to(tl.int64) * form.block_bytes
    codes = load_rows(block + in_block * rank, readable, rank, padded_rank).to(tl.int32)
    scales_at = block + (form.scales + in_block * (form.num_groups * form.scale_bytes))
    group_tile: tl.constexpr = group_numbers(form, padded_rank)
    group = tl.arange(0, padded_rank // group_tile)
    places = scales_at.to(tl.pointer_type(tl.float32), bitcast=True)[:, None] + group[None, :]
    inside = readable[:, None] & (group < form.num_groups)[None, :]
    scales = tl.load(places, mask=inside, other=0.0)
    levels = own_numbers(codes, form).to(tl.float32)
    levels = tl.reshape(levels, (codes.shape[0], padded_rank // group_tile, group_tile))
    latents = tl.reshape((levels * scales[:, :, None]).to(dtype), codes.shape)
    shared_at = block + (form.shared + in_block * (rope_dim * 2))
    halves = shared_at.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    shared = load_rows(halves, readable, rope_dim, padded_rope)
    return latents, shared.to(tl.float32).to(dtype)


@triton.jit
def attend_latents(
    sums, mass, highest, absorbed, turned, positions, begin, end, blocks, table, scale,
    block_size: tl.constexpr, block_numbers: tl.constexpr, rank: tl.constexpr,
    rope_dim: tl.constexpr, padded_rank: tl.constexpr, padded_rope: tl.constexpr,
    tile: tl.constexpr, stages: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """Walk over tokens [begin, end), begin a multiple of tile.

    positions: [rows], up to which a row sees them; None: all rows see all.
    """
    tokens = begin + tl.arange(0, tile)
    block_ids = block_ids_of(table, tokens, tokens < end, block_size)
    for start in tl.range(begin, end, tile, num_stages=stages):
        tokens = start + tl.arange(0, tile)
        # A tile ahead, so that latents never wait for the number of their block.
        next_ids = block_ids_of(table, tokens + tile, tokens + tile < end, block_size)
        readable = tokens < end
        seen = readable[None, :]
        if positions is not None:
            seen = seen & (tokens[None, :] <= positions[:, None])
        in_block = (tokens.to(tl.uint32) % block_size).to(tl.int32)
        if form is None:
            latents, shared = plain_latents(
                blocks, block_ids, in_block, readable, block_numbers, rank, rope_dim, padded_rank,
                padded_rope,
            )  # fmt: skip
        else:
            latents, shared = coded_latents(
                blocks, block_ids, in_block, readable, absorbed.dtype, rank, rope_dim, padded_rank,
                padded_rope, form,
            )  # fmt: skip
        scores = tl.dot(absorbed, tl.trans(latents), input_precision="ieee")
        scores = tl.dot(turned, tl.trans(shared), scores, input_precision="ieee")
        weights, decay, mass, highest = weighed(scores, mass, highest, seen, scale)
        sums = sums * decay[:, None]
        sums = tl.dot(weights.to(latents.dtype), latents, sums, input_precision="ieee")
        block_ids = next_ids
    return sums, mass, highest
