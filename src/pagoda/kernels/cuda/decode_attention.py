"""Attention of one new token per sequence over a paged cache, split over the sequence.

Few rows read long contexts, so a context is cut into splits that run side by side, and a second
launch merges their results in the order of the splits (Flash-Decoding, Dao et al., 2023):

    grid (KV heads, rows, splits) --> normalised sums and log-sum-exps --> grid (heads, rows)

All query heads of a KV head are one tile, so keys and values are read once. Splits are made of
what a row sees, and their number is a function of that length alone: a row's result does not
depend on the rows beside it, in not a single bit. Rows of one split run side by side: where
sequences share a prefix, its blocks are read from memory once and then found in L2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from pagoda.kernels.cuda.attention_tile import (
    LOG2_E,
    NOTHING_YET,
    attend_tile,
    block_ids_of,
    key_offsets,
    load_rows,
    tile_tokens,
)

MAX_SPLITS = 32
SPLIT_TOKENS = 256
"""Of the shortest split: a multiple of every tile. It writes and reads again 2 · group numbers in
float32 where it read 512 per KV head, so 3% for groups of four; and one row of 4,096 tokens and
eight KV heads makes 128 programs, one for each multiprocessor."""

_HEAD_TILE = 16
"""Query heads of a group, padded to the least that a matrix product takes."""


class DecodeWorkspace(NamedTuple):
    """What splits leave for the merge; only what one call wrote is read by the same call."""

    sums: torch.Tensor
    """[rows, num_heads, MAX_SPLITS, head_dim] float32, divided by the sum of the weights."""
    log_masses: torch.Tensor
    """[rows, num_heads, MAX_SPLITS] float32: log2 of Σ 2 ** (score · scale · log2(e))."""

    @classmethod
    def of(
        cls, num_rows: int, num_heads: int, head_dim: int, device: torch.device
    ) -> DecodeWorkspace:
        """Memory for calls with up to so many rows and heads of up to so many numbers."""
        shape = (num_rows, num_heads, MAX_SPLITS)
        return cls(
            torch.empty((*shape, head_dim), dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
        )


@triton.jit
def first_token(context_len, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Where the first tile that the last token of a context sees starts."""
    if WINDOW is None:
        return context_len * 0
    return tl.maximum(context_len - WINDOW, 0) // TILE * TILE


@triton.jit
def split_length(num_tokens, TILE: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr):
    """Tokens of a split: whole tiles, at least SPLIT, so many that at most SPLITS are needed."""
    return tl.maximum(tl.cdiv(tl.cdiv(num_tokens, SPLITS), TILE) * TILE, SPLIT)


@triton.jit(do_not_specialize=["table_width"])
def decode_splits(
    out,
    query,
    blocks,
    block_tables,
    context_lens,
    rows,
    sequences,
    sums_out,
    log_masses_out,
    table_width,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One split of one row and KV head. A row that has one split goes to `out` at once."""
    kv_head, index, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(rows + index).to(tl.int64)
    sequence = tl.load(sequences + index).to(tl.int64)
    context_len = tl.load(context_lens + sequence)
    first = first_token(context_len, TILE, WINDOW)
    length = split_length(context_len - first, TILE, SPLIT, SPLITS)
    begin = first + split * length
    if (begin >= context_len) & (split > 0):
        return
    end = tl.minimum(begin + length, context_len)
    table = block_tables + sequence * table_width

    dims = tl.arange(0, PADDED_DIM)
    heads = tl.arange(0, HEAD_TILE)
    head_ids = kv_head * GROUP + heads
    within = (heads < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    places = (row * (KV_HEADS * GROUP) + head_ids)[:, None] * HEAD_DIM + dims[None, :]
    own_query = tl.load(query + places, mask=within, other=0.0)
    sums = tl.zeros((HEAD_TILE, PADDED_DIM), tl.float32)
    mass = tl.zeros((HEAD_TILE,), tl.float32)
    highest = tl.full((HEAD_TILE,), NOTHING_YET, tl.float32)

    tokens = begin + tl.arange(0, TILE)
    block_ids = block_ids_of(table, tokens, tokens < end, BLOCK_SIZE)
    for start in tl.range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        seen = tokens < end
        if WINDOW is not None:
            seen = seen & (tokens >= context_len - WINDOW)
        keys_at = blocks + key_offsets(block_ids, tokens, kv_head, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        values_at = keys_at + KV_HEADS * BLOCK_SIZE * HEAD_DIM
        # A tile ahead, so that keys never wait for the number of their block.
        block_ids = block_ids_of(table, tokens + TILE, tokens + TILE < end, BLOCK_SIZE)
        keys = load_rows(keys_at, seen, HEAD_DIM, PADDED_DIM)
        values = load_rows(values_at, seen, HEAD_DIM, PADDED_DIM)
        sums, mass, highest = attend_tile(
            sums, mass, highest, own_query, keys, values, seen[None, :], scale
        )

    sums = sums / tl.where(mass > 0, mass, 1.0)[:, None]  # a context of no tokens: zeros
    if context_len - first <= length:
        tl.store(out + places, sums.to(out.dtype.element_ty), mask=within)
    else:
        part = (index.to(tl.int64) * (KV_HEADS * GROUP) + head_ids) * SPLITS + split
        tl.store(sums_out + part[:, None] * HEAD_DIM + dims[None, :], sums, mask=within)
        tl.store(log_masses_out + part, highest + tl.log2(mass), mask=heads < GROUP)


@triton.jit
def merge_splits(
    out,
    sums_in,
    log_masses_in,
    context_lens,
    rows,
    sequences,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Merge what the splits of one row and head left, where there is more than one."""
    head, index = tl.program_id(0), tl.program_id(1)
    context_len = tl.load(context_lens + tl.load(sequences + index))
    num_tokens = context_len - first_token(context_len, TILE, WINDOW)
    num_splits = tl.cdiv(num_tokens, split_length(num_tokens, TILE, SPLIT, SPLITS))
    if num_splits <= 1:
        return
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, PADDED_DIM)
    used = splits < num_splits
    parts = (index.to(tl.int64) * HEADS + head) * SPLITS + splits
    log_masses = tl.load(log_masses_in + parts, mask=used, other=float("-inf"))
    sums = load_rows(sums_in + parts * HEAD_DIM, used, HEAD_DIM, PADDED_DIM)
    weights = tl.exp2(log_masses - tl.max(log_masses, 0))
    merged = tl.sum(sums * weights[:, None], 0) / tl.sum(weights, 0)
    row = tl.load(rows + index).to(tl.int64)
    place = out + (row * HEADS + head) * HEAD_DIM + dims
    tl.store(place, merged.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


def decode_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    blocks: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    rows: torch.Tensor,
    sequences: torch.Tensor,
    scale: float,
    window: int | None,
    workspace: DecodeWorkspace,
) -> None:
    """Write to `out` what each of the given rows sees of its sequence.

    out, query: [tokens, num_heads, head_dim], contiguous; only the given rows of `out` change.
    blocks: [num_blocks, 2, num_kv_heads, block_size, head_dim], contiguous, keys and then values,
    the row's own included. block_tables: [sequences, most blocks] int32. context_lens:
    [sequences] int32, the row's own token included; 0 makes the row zeros. rows, sequences:
    [n] int32: row rows[i] is the last token of sequence sequences[i]. scale > 0. window: tokens
    seen, the row's own included. workspace: for at least n rows; written.
    """
    _, num_heads, head_dim = query.shape
    _, _, num_kv_heads, block_size, _ = blocks.shape
    most_blocks = block_tables.shape[1]
    assert query.is_contiguous() and out.is_contiguous() and blocks.is_contiguous()
    assert scale > 0 and len(rows) <= len(workspace.sums)
    tile = tile_tokens(head_dim, blocks.dtype)
    shape = {
        "HEAD_DIM": head_dim,
        "PADDED_DIM": triton.next_power_of_2(head_dim),
        "TILE": tile,
        "SPLIT": SPLIT_TOKENS,
        "SPLITS": MAX_SPLITS,
        "WINDOW": window,
    }
    # Longer contexts than the tables hold do not occur: no programs for their splits.
    num_splits = min(MAX_SPLITS, triton.cdiv(most_blocks * block_size, SPLIT_TOKENS))
    decode_splits[(num_kv_heads, len(rows), num_splits)](
        out,
        query,
        blocks,
        block_tables,
        context_lens,
        rows,
        sequences,
        *workspace,
        most_blocks,
        scale * LOG2_E,
        KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        BLOCK_SIZE=block_size,
        HEAD_TILE=_HEAD_TILE,
        **shape,
        num_warps=4,
        num_stages=3,
    )
    if num_splits > 1:
        merge_splits[(num_heads, len(rows))](
            out, *workspace, context_lens, rows, sequences, HEADS=num_heads, **shape, num_warps=4
        )
