"""Attention of several tokens per sequence over a paged cache: chunked, causal, sliding windows.

A tile has the queries of some tokens of one sequence, and of all heads that share a KV head, as
its rows, and walks over the tokens that they see in three parts:

        | window begins | every row sees all | the diagonal |
    begin          full_begin            full_end           end

Masks are needed in the first part, which there is only with a window, and in the last. Tiles of
keys start at multiples of their length, and a row is changed by no tile that it does not see. So a
row's sums have one order, whatever rows are beside it and however its sequence was cut into chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from pagoda.kernels.array import Array
from pagoda.kernels.cuda.attention_tile import (
    LOG2_E,
    NOTHING_YET,
    NUM_STAGES,
    ON_AMD,
    attend_tile,
    block_ids_of,
    key_offsets,
    load_rows,
)

_UNIT_ROWS = 64
_TILE_UNITS = 2


def query_tile(group_size: int) -> int:
    """Tokens of a tile, where group_size heads share a KV head, 1 to 16: up to 128 rows.

    So each key that is read meets 128 queries, and the product is bound by arithmetic.
    """
    return _TILE_UNITS * (_UNIT_ROWS // group_size)


class ProgramShape(NamedTuple):
    """What one program works on at a time; found with the compiler, so that registers suffice."""

    rows: int
    """Query rows: a tile of queries takes one program, or several side by side."""
    keys: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, head_dim: int, dtype: torch.dtype) -> ProgramShape:
        """For heads of up to 256 numbers. float32 meets no matrix unit; it is for comparisons."""
        if dtype.itemsize > 2:
            return cls(_UNIT_ROWS // 2, 16, num_warps=8, num_stages=2)
        if head_dim > 128:
            return cls(_UNIT_ROWS, 16, num_warps=4, num_stages=NUM_STAGES)
        keys = 32 if ON_AMD else 64
        return cls(_TILE_UNITS * _UNIT_ROWS, keys, num_warps=8, num_stages=NUM_STAGES)


def prefill_tiles(query_starts: Array, wanted: Array, group_size: int) -> Array:
    """The tiles that cover all rows of the sequences `wanted`: [n, 2] int32, sequence and row.

    query_starts: [sequences + 1]; wanted: sequences, ascending or not; rows are counted in the
    sequence. The last tiles of sequences see the most, so they come first: work that starts early
    leaves no long tail.
    """
    length = query_tile(group_size)
    counts = -(-np.diff(query_starts)[wanted] // length)
    ends = np.cumsum(counts)
    rows = (np.arange(counts.sum()) - np.repeat(ends - counts, counts)) * length
    order = np.argsort(-rows, kind="stable")
    return np.stack([np.repeat(wanted, counts), rows], axis=1).astype(np.int32)[order]


@triton.jit
def attend_part(
    sums, mass, highest, query, positions, begin, end, seen_from,
    blocks, table, kv_head, scale,
    num_kv_heads: tl.constexpr, block_size: tl.constexpr,
    head_dim: tl.constexpr, padded_dim: tl.constexpr,
    tile: tl.constexpr, window: tl.constexpr, masked: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Walk over tokens [begin, end), begin a multiple of tile; end as well, unless masked."""
    tokens = begin + tl.arange(0, tile)
    block_ids = block_ids_of(table, tokens, (tokens >= seen_from) & (tokens < end), block_size)
    for start in tl.range(begin, end, tile, num_stages=stages):
        tokens = start + tl.arange(0, tile)
        keys_at = blocks + key_offsets(
            block_ids, tokens, kv_head, num_kv_heads, block_size, head_dim
        )
        values_at = keys_at + num_kv_heads * block_size * head_dim
        # A tile ahead, so that keys never wait for the number of their block.
        block_ids = block_ids_of(table, tokens + tile, tokens + tile < end, block_size)
        readable = None
        seen = None
        if masked:
            readable = (tokens >= seen_from) & (tokens < end)
            seen = tokens[None, :] <= positions[:, None]
            if window is not None:
                seen = seen & (tokens[None, :] > positions[:, None] - window)
        keys = load_rows(keys_at, readable, head_dim, padded_dim)
        values = load_rows(values_at, readable, head_dim, padded_dim)
        sums, mass, highest = attend_tile(sums, mass, highest, query, keys, values, seen, scale)
    return sums, mass, highest


@triton.jit(do_not_specialize=["table_width"])
def prefill_tile(
    out, query, blocks, block_tables, context_lens, query_starts, tiles, table_width, scale,
    num_kv_heads: tl.constexpr, group_size: tl.constexpr, block_size: tl.constexpr,
    tile_rows: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    tile: tl.constexpr, query_tokens: tl.constexpr, window: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """Of one KV head and one tile of queries as many tokens as fit in tile_rows rows."""
    kv_head, part, index = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    part_tokens = tile_rows // group_size
    sequence = tl.load(tiles + 2 * index).to(tl.int64)
    first = tl.load(tiles + 2 * index + 1) + part * part_tokens
    start = tl.load(query_starts + sequence)
    num_tokens = tl.load(query_starts + sequence + 1) - start
    if first >= num_tokens:
        return
    position = tl.load(context_lens + sequence) - num_tokens + first
    num_own = tl.minimum(
        num_tokens - first, tl.minimum(part_tokens, query_tokens - part * part_tokens)
    )
    table = block_tables + sequence * table_width

    dims = tl.arange(0, padded_dim)
    own = tl.arange(0, tile_rows) // group_size
    head_ids = kv_head * group_size + tl.arange(0, tile_rows) % group_size
    rows = (start + first + own).to(tl.int64)
    places = (rows * (num_kv_heads * group_size) + head_ids)[:, None] * head_dim + dims[None, :]
    within = (own < num_own)[:, None] & (dims < head_dim)[None, :]
    own_query = tl.load(query + places, mask=within, other=0.0)
    positions = position + own
    sums = tl.zeros((tile_rows, padded_dim), tl.float32)
    mass = tl.zeros((tile_rows,), tl.float32)
    highest = tl.full((tile_rows,), NOTHING_YET, tl.float32)

    end = position + num_own
    full_end = (position + 1) // tile * tile
    seen_from = 0
    full_begin = 0
    if window is not None:
        seen_from = tl.maximum(position - window + 1, 0)
        full_begin = tl.minimum(tl.cdiv(tl.maximum(end - window, 0), tile) * tile, full_end)
        sums, mass, highest = attend_part(
            sums, mass, highest, own_query, positions, seen_from // tile * tile, full_begin,
            seen_from, blocks, table, kv_head, scale, num_kv_heads, block_size, head_dim,
            padded_dim, tile, window, True, 1,
        )  # fmt: skip
    sums, mass, highest = attend_part(
        sums, mass, highest, own_query, positions, full_begin, full_end,
        seen_from, blocks, table, kv_head, scale, num_kv_heads, block_size, head_dim,
        padded_dim, tile, window, False, stages,
    )  # fmt: skip
    sums, mass, highest = attend_part(
        sums, mass, highest, own_query, positions, full_end, end,
        seen_from, blocks, table, kv_head, scale, num_kv_heads, block_size, head_dim,
        padded_dim, tile, window, True, 1,
    )  # fmt: skip
    sums = sums / tl.where(mass > 0, mass, 1.0)[:, None]  # rows past the end of a sequence
    tl.store(out + places, sums.to(out.dtype.element_ty), mask=within)


def prefill_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    blocks: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    tiles: torch.Tensor,
    scale: float,
    window: int | None,
) -> None:
    """Write to `out` what each row of the given tiles sees of its sequence.

    out, query: [tokens, num_heads, head_dim], contiguous; only rows of the tiles change in `out`.
    blocks: [num_blocks, 2, num_kv_heads, block_size, head_dim], contiguous, keys and then values,
    those of the rows themselves included. block_tables: [sequences, most blocks] int32.
    context_lens: [sequences] int32. query_starts: [sequences + 1] int32: a sequence's rows; the
    last of them is the last token of its context. tiles: [n, 2] int32 from `prefill_tiles`.
    scale > 0. window: tokens seen, the row's own included.
    """
    _, num_heads, head_dim = query.shape
    _, _, num_kv_heads, block_size, _ = blocks.shape
    assert all(each.is_contiguous() for each in (out, query, blocks, tiles))
    assert block_tables.stride(1) == 1
    assert scale > 0
    group_size = num_heads // num_kv_heads
    shape = ProgramShape.of(head_dim, blocks.dtype)
    query_tokens = query_tile(group_size)
    num_parts = triton.cdiv(query_tokens, shape.rows // group_size)
    prefill_tile[(num_kv_heads, num_parts, len(tiles))](
        out,
        query,
        blocks,
        block_tables,
        context_lens,
        query_starts,
        tiles,
        block_tables.stride(0),
        scale * LOG2_E,
        num_kv_heads=num_kv_heads,
        group_size=group_size,
        block_size=block_size,
        tile_rows=shape.rows,
        head_dim=head_dim,
        padded_dim=triton.next_power_of_2(head_dim),
        tile=shape.keys,
        query_tokens=query_tokens,
        window=window,
        stages=shape.num_stages,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
