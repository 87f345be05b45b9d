"""Attention of one new token per sequence over a paged cache, split over the sequence.

Few rows read long contexts, so a context is cut into splits that run side by side, and a second
launch merges their results in the order of the splits (Flash-Decoding, Dao et al., 2023):

    grid (KV heads, rows, programs) --> normalised sums and log-sum-exps --> grid (heads, rows)

All query heads of a KV head are one tile, so keys and values are read once. Splits are made of
what a row sees, sinks with the first, and their number is a function of its length alone: a row's
result does not depend on the rows beside it, in not a single bit. Rows of one split run side by
side: where sequences share a prefix, its blocks are read from memory once and then found in L2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagoda.kernels.gpu.attention_tile import (
    LOG2_E,
    NOTHING_YET,
    NUM_STAGES,
    ON_AMD,
    attend_tokens,
    block_ids_of,
    joined,
)
from pagoda.kernels.gpu.code_form import PageCodes, page_shape, read_tables
from pagoda.kernels.gpu.partial_sums import PartialSums, merged_parts
from pagoda.kernels.gpu.parts import MAX_SPLITS, decode_parts
from pagoda.kernels.gpu.windows import Windows, first_in_window, num_sinks, window_tensors

SPLIT_TOKENS = 256
"""Tokens of the shortest split: a multiple of every tile. It writes and reads again 2 · group
numbers in float32 where it read 512 per KV head, so 3% for groups of four. One row of 4,096
tokens and eight KV heads makes 128 programs, one for each multiprocessor."""

_TILE_BYTES = 8192 if ON_AMD else 16384
_MOST_TILE_TOKENS = 128
_MOST_PROGRAMS = 8192
"""About: where rows are many, a program has several splits. Tables, and the grid that a CUDA graph
keeps, are as wide as the longest context there can be: most rows have fewer splits, and a program
without one still takes its nanosecond, in every layer. These are some twenty for each place that a
large GPU has for one, enough to keep all of them at work."""
_HEAD_TILE = 16
"""Query heads of a group, padded to the least that a matrix product takes."""


def tile_tokens(head_dim: int, dtype: torch.dtype, share: int = 1) -> int:
    """Tokens of a tile, a power of two from 16 on: its keys fill about 16 KiB, on AMD 8 KiB.

    A stage of the pipeline then has 32 KiB, keys and values. Two stages fit into the 99 KiB of
    consumer chips, and three times into a multiprocessor of an H200: over 96 KiB are on their way
    at any time, where 4.8 TB/s · 1 µs / 132 = 36 KiB hide the latency of memory. On MI300 four
    programs share a compute unit, by registers as by shared memory, with 16 KiB on their way each.
    `share`: of these tokens a tile has one in so many.
    """
    row_bytes = triton.next_power_of_2(head_dim) * dtype.itemsize * share
    return min(_MOST_TILE_TOKENS, max(16, _TILE_BYTES // row_bytes))


@triton.jit
def seen_tokens(context_len, sequence, sizes, has_sinks: tl.constexpr, tile: tl.constexpr):
    """The first token behind sinks that the last one of a context sees, and its tile's first."""
    seen_from = 0
    first = 0
    if sizes is not None:
        seen_from = first_in_window(context_len - 1, sizes, sequence, has_sinks)
        first = tl.minimum(seen_from, tl.maximum(context_len - 1, 0)) // tile * tile
    return seen_from, first


@triton.jit
def split_length(num_tokens, tile: tl.constexpr, least: tl.constexpr, max_splits: tl.constexpr):
    """Tokens of a split: whole tiles, at least `least`, so many that `max_splits` are enough."""
    return tl.maximum(tl.cdiv(tl.cdiv(num_tokens, max_splits), tile) * tile, least)


@triton.jit
def attend_span(
    sums, mass, highest, query, blocks, table, begin, end, seen_from, kv_head, scale, cap,
    key_levels, value_levels,
    num_kv_heads: tl.constexpr, block_size: tl.constexpr, block_numbers: tl.constexpr,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, tile: tl.constexpr, form: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """Walk over tokens [begin, end), of which those from seen_from on are seen; None: all."""
    query_sums = None
    if form is not None:
        query_sums = tl.sum(query.to(tl.float32), 1)
    tokens = begin + tl.arange(0, tile)
    block_ids = block_ids_of(table, tokens, tokens < end, block_size)
    for start in tl.range(begin, end, tile, num_stages=stages):
        tokens = start + tl.arange(0, tile)
        seen = tokens < end
        if seen_from is not None:
            seen = seen & (tokens >= seen_from)
        # A tile ahead, so that keys never wait for the number of their block.
        next_ids = block_ids_of(table, tokens + tile, tokens + tile < end, block_size)
        sums, mass, highest = attend_tokens(
            sums, mass, highest, query, query_sums, blocks, block_ids, tokens, kv_head,
            seen, seen[None, :], scale, cap, key_levels, value_levels,
            num_kv_heads, block_size, block_numbers, head_dim, padded_dim, form,
        )  # fmt: skip
        block_ids = next_ids
    return sums, mass, highest


@triton.jit(do_not_specialize=["table_width"])
def decode_splits(
    out, query, blocks, block_tables, context_lens, rows, sequences, split_sums, split_masses,
    key_levels, value_levels, sizes, sink_query, sink_logits, table_width, scale, cap,
    num_kv_heads: tl.constexpr, group_size: tl.constexpr, block_size: tl.constexpr,
    block_numbers: tl.constexpr, head_tile: tl.constexpr, head_dim: tl.constexpr,
    padded_dim: tl.constexpr, tile: tl.constexpr, least: tl.constexpr, max_splits: tl.constexpr,
    form: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Splits of one row and KV head: program i of n has the splits i, i + n, i + 2 n, …

    Sinks come with the first. A row that has one split goes to `out` at once.
    """
    kv_head, index, program = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(rows + index).to(tl.int64)
    sequence = tl.load(sequences + index).to(tl.int64)
    context_len = tl.load(context_lens + sequence)
    seen_from, first = seen_tokens(context_len, sequence, sizes, sink_query is not None, tile)
    length = split_length(context_len - first, tile, least, max_splits)
    num_splits = tl.maximum(tl.cdiv(context_len - first, length), 1)
    if program >= num_splits:
        return
    table = block_tables + sequence * table_width

    dims = tl.arange(0, padded_dim)
    heads = tl.arange(0, head_tile)
    head_ids = kv_head * group_size + heads
    within = (heads < group_size)[:, None] & (dims < head_dim)[None, :]
    places = (row * (num_kv_heads * group_size) + head_ids)[:, None] * head_dim + dims[None, :]
    own_query = tl.load(query + places, mask=within, other=0.0)

    for split in range(program, num_splits, tl.num_programs(2)):
        begin = first + split * length
        end = tl.minimum(begin + length, context_len)
        sums = tl.zeros((head_tile, padded_dim), tl.float32)
        mass = tl.zeros((head_tile,), tl.float32)
        highest = tl.full((head_tile,), NOTHING_YET, tl.float32)
        if sink_query is not None:
            sinks = tl.minimum(num_sinks(sizes, sequence), context_len)
            sinks = tl.where(split == 0, sinks, 0)
            sums, mass, highest = attend_span(
                sums, mass, highest, tl.load(sink_query + places, mask=within, other=0.0),
                blocks, table, 0, sinks, None, kv_head, scale, cap, key_levels, value_levels,
                num_kv_heads, block_size, block_numbers, head_dim, padded_dim, tile, form, 1,
            )  # fmt: skip
        sums, mass, highest = attend_span(
            sums, mass, highest, own_query, blocks, table, begin, end,
            None if sizes is None else seen_from, kv_head, scale, cap, key_levels, value_levels,
            num_kv_heads, block_size, block_numbers, head_dim, padded_dim, tile, form, stages,
        )  # fmt: skip

        if sink_logits is not None:
            joins = (heads < group_size) & (num_splits == 1)  # else they join what is merged
            own = tl.load(sink_logits + head_ids, mask=joins, other=float("-inf"))
            decay, mass = joined(mass, highest, own)
            sums *= decay[:, None]
        sums = sums / tl.where(mass > 0, mass, 1.0)[:, None]  # a context of no tokens: zeros
        if num_splits == 1:
            tl.store(out + places, sums.to(out.dtype.element_ty), mask=within)
        else:
            part = (index.to(tl.int64) * (num_kv_heads * group_size) + head_ids) * max_splits
            part += split
            tl.store(split_sums + part[:, None] * head_dim + dims[None, :], sums, mask=within)
            tl.store(split_masses + part, highest + tl.log2(mass), mask=heads < group_size)


@triton.jit
def merge_splits(
    out, split_sums, split_masses, context_lens, rows, sequences, sizes, sink_logits,
    num_heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    tile: tl.constexpr, least: tl.constexpr, max_splits: tl.constexpr, has_sinks: tl.constexpr,
):  # fmt: skip
    """Merge what the splits of one row and head left, where there is more than one."""
    head, index = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(sequences + index).to(tl.int64)
    context_len = tl.load(context_lens + sequence)
    _, first = seen_tokens(context_len, sequence, sizes, has_sinks, tile)
    num_tokens = context_len - first
    num_splits = tl.cdiv(num_tokens, split_length(num_tokens, tile, least, max_splits))
    if num_splits <= 1:
        return
    splits = tl.arange(0, max_splits)
    dims = tl.arange(0, padded_dim)
    used = splits < num_splits
    parts = (index.to(tl.int64) * num_heads + head) * max_splits + splits
    merged = merged_parts(
        split_sums, split_masses, parts, used, head, sink_logits, head_dim, padded_dim
    )
    row = tl.load(rows + index).to(tl.int64)
    place = out + (row * num_heads + head) * head_dim + dims
    tl.store(place, merged.to(out.dtype.element_ty), mask=dims < head_dim)


def decode_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    blocks: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    rows: torch.Tensor,
    sequences: torch.Tensor,
    scale: float,
    windows: Windows | None,
    partial: PartialSums,
    codes: PageCodes | None = None,
    *,
    logit_cap: float | None = None,
    sink_logits: torch.Tensor | None = None,
) -> None:
    """Write to `out` what each of the given rows sees of its sequence.

    out, query: [tokens, num_heads, head_dim], contiguous; only the given rows of `out` change.
    blocks: [num_blocks, 2, num_kv_heads, block_size, head_dim], keys and then values, the row's own
    included; a block's lie together. block_tables: [sequences, most blocks] int32, anything where
    no row sees a token. context_lens: [sequences] int32, the row's own token included; 0 makes the
    row zeros. rows, sequences: [n] int32: row rows[i] is the last token of sequence sequences[i].
    scale > 0. windows: None: all is seen. partial: for at least decode_parts(n, num_heads);
    written. codes: blocks are [num_blocks, bytes] uint8 of these; queries are turned as keys are.
    logit_cap: above 0: a score s becomes cap · tanh(s / cap). sink_logits: [num_heads], one more
    logit of each row, without a value.
    """
    _, num_heads, head_dim = query.shape
    num_kv_heads, block_size, block_numbers = page_shape(blocks, codes)
    sizes, sink_query = window_tensors(windows)
    assert all(each is None or each.is_contiguous() for each in (out, query, sizes, sink_query))
    assert block_tables.stride(1) == 1
    assert num_heads <= _HEAD_TILE * num_kv_heads
    assert scale > 0
    assert logit_cap is None or logit_cap > 0
    assert sink_logits is None or (len(sink_logits) == num_heads and sink_logits.is_contiguous())
    assert decode_parts(len(rows), num_heads) <= len(partial.sums)
    form = None if codes is None else codes.form
    is_mixed = form is not None and form.is_mixed
    # Codes of several widths have room for each on its way, and paths take more registers.
    share = 4 if form is not None and form.has_paths else 2 if is_mixed else 1
    tile = tile_tokens(head_dim, query.dtype, share)
    num_stages = 2 if is_mixed else NUM_STAGES
    shape = {
        "head_dim": head_dim,
        "padded_dim": triton.next_power_of_2(head_dim),
        "tile": tile,
        "least": SPLIT_TOKENS,
        "max_splits": MAX_SPLITS,
    }
    # Longer contexts than the tables hold do not occur: no programs for their splits.
    num_splits = min(MAX_SPLITS, triton.cdiv(block_tables.shape[1] * block_size, SPLIT_TOKENS))
    num_programs = min(num_splits, triton.cdiv(_MOST_PROGRAMS, num_kv_heads * len(rows)))
    decode_splits[(num_kv_heads, len(rows), num_programs)](
        out,
        query,
        blocks,
        block_tables,
        context_lens,
        rows,
        sequences,
        *partial,
        *read_tables(codes),
        sizes,
        sink_query,
        sink_logits,
        block_tables.stride(0),
        scale * LOG2_E,
        None if logit_cap is None else logit_cap * LOG2_E,
        num_kv_heads=num_kv_heads,
        group_size=num_heads // num_kv_heads,
        block_size=block_size,
        block_numbers=block_numbers,
        head_tile=_HEAD_TILE,
        **shape,
        form=form,
        stages=num_stages,
        num_warps=4,
        num_stages=num_stages,
    )
    if num_splits > 1:
        merge_splits[(num_heads, len(rows))](
            out,
            *partial,
            context_lens,
            rows,
            sequences,
            sizes,
            sink_logits,
            num_heads=num_heads,
            has_sinks=sink_query is not None,
            **shape,
            num_warps=4,
        )
