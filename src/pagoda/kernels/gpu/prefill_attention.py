"""Attention of several tokens per sequence over a paged cache: chunked, causal, sliding windows.

A tile has the queries of some tokens of one sequence, and of all heads that share a KV head, as
its rows, and walks over the tokens that they see, or one split of them, in three parts:

        | window begins | every row sees all | the diagonal |
    begin          full_begin            full_end           end

Masks are needed in the first part, which there is only with a window, and in the last. Sinks, which
meet a query of their own, come before all that, with the first split.

Tiles of keys start at multiples of their length, and a row is changed by no tile that it does not
see. So where nothing is split, a row's sums have one order, however its sequence was cut into
chunks; and the tiling splits by a sequence's own rows and context, so it has, whatever sequences
are beside it.
"""

from __future__ import annotations

from typing import NamedTuple

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
from pagoda.kernels.gpu.code_form import BlockForm, PageCodes, page_shape, read_tables
from pagoda.kernels.gpu.partial_sums import PartialSums, merged_parts
from pagoda.kernels.gpu.parts import PREFILL_PARTS
from pagoda.kernels.gpu.prefill_tiling import MERGE_NUMBERS, QUERY_ROWS, TILE_NUMBERS, PrefillTiling
from pagoda.kernels.gpu.windows import (
    NO_WINDOW,
    Windows,
    first_in_window,
    num_sinks,
    window_tensors,
)

_TILE_NUMBERS, _MERGE_NUMBERS = tl.constexpr(TILE_NUMBERS), tl.constexpr(MERGE_NUMBERS)


class ProgramShape(NamedTuple):
    """What one program works on at a time; found with the compiler, so that registers suffice."""

    rows: int
    """Query rows: a tile of queries takes one program, or several side by side."""
    keys: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, head_dim: int, dtype: torch.dtype, form: BlockForm | None = None) -> ProgramShape:
        """For heads of up to 256 numbers. float32 meets no matrix unit; it is for comparisons.

        A cache of codes takes registers for what they become.
        """
        if dtype.itemsize > 2:
            return cls(QUERY_ROWS // 4, 16, num_warps=8, num_stages=2)
        if form is not None:
            return cls._of_codes(head_dim, form.is_mixed)
        if head_dim > 128:
            return cls(QUERY_ROWS // 2, 16, num_warps=4, num_stages=NUM_STAGES)
        keys = 32 if ON_AMD else 64
        return cls(QUERY_ROWS, keys, num_warps=8, num_stages=NUM_STAGES)

    @classmethod
    def _of_codes(cls, head_dim: int, is_mixed: bool) -> ProgramShape:
        num_stages = 2 if is_mixed else NUM_STAGES
        if head_dim > 128:
            return cls(QUERY_ROWS // 4, 16, num_warps=4, num_stages=num_stages)
        if ON_AMD:
            return cls(QUERY_ROWS // 2, 32, num_warps=4, num_stages=num_stages)
        return cls(QUERY_ROWS, 16 if is_mixed else 32, num_warps=8, num_stages=num_stages)


@triton.jit
def attend_part(
    sums, mass, highest, query, query_sums, positions, begin, end, seen_from, window,
    blocks, table, kv_head, scale, cap, key_levels, value_levels,
    num_kv_heads: tl.constexpr, block_size: tl.constexpr, block_numbers: tl.constexpr,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, form: tl.constexpr,
    tile: tl.constexpr, masked: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Walk over tokens [begin, end), begin a multiple of tile; end as well, unless masked.

    Of masked ones a row sees those from seen_from on that are in its window; None: all up to it.
    """
    tokens = begin + tl.arange(0, tile)
    block_ids = block_ids_of(table, tokens, (tokens >= seen_from) & (tokens < end), block_size)
    for start in tl.range(begin, end, tile, num_stages=stages):
        tokens = start + tl.arange(0, tile)
        # A tile ahead, so that keys never wait for the number of their block.
        next_ids = block_ids_of(table, tokens + tile, tokens + tile < end, block_size)
        readable = None
        seen = None
        if masked:
            readable = (tokens >= seen_from) & (tokens < end)
            seen = tokens[None, :] <= positions[:, None]
            if window is not None:
                seen = seen & readable[None, :] & (tokens[None, :] > positions[:, None] - window)
        sums, mass, highest = attend_tokens(
            sums, mass, highest, query, query_sums, blocks, block_ids, tokens, kv_head,
            readable, seen, scale, cap, key_levels, value_levels,
            num_kv_heads, block_size, block_numbers, head_dim, padded_dim, form,
        )  # fmt: skip
        block_ids = next_ids
    return sums, mass, highest


@triton.jit
def sums_of(query, form: tl.constexpr):
    """Σ of each query's numbers, which offsets of keys are multiplied with; None without codes."""
    found = None
    if form is not None:
        found = tl.sum(query.to(tl.float32), 1)
    return found


@triton.jit(do_not_specialize=["first_tile", "table_width"])
def prefill_tile(
    out, query, blocks, block_tables, tiles, split_sums, split_masses,
    key_levels, value_levels, sizes, sink_query, sink_logits, first_tile, table_width,
    scale, cap,
    num_kv_heads: tl.constexpr, group_size: tl.constexpr, block_size: tl.constexpr,
    block_numbers: tl.constexpr, tile_rows: tl.constexpr, head_dim: tl.constexpr,
    padded_dim: tl.constexpr, tile: tl.constexpr, stages: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """Attends one tile of queries, as many tokens as fit in tile_rows rows, to one KV head.

    What a tile that is not split has seen goes to `out` at once.
    """
    kv_head, part, index = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    part_tokens = tile_rows // group_size
    own_tile = tiles + _TILE_NUMBERS * (first_tile + index)
    sequence = tl.load(own_tile).to(tl.int64)
    first = part * part_tokens
    num_own = tl.minimum(tl.load(own_tile + 2) - first, part_tokens)
    if num_own <= 0:
        return
    row = tl.load(own_tile + 1) + first
    position = tl.load(own_tile + 3) + first
    begin = tl.load(own_tile + 4)
    end = tl.minimum(tl.load(own_tile + 5), position + num_own)
    partial_row = tl.load(own_tile + 6)
    table = block_tables + sequence * table_width

    dims = tl.arange(0, padded_dim)
    own = tl.arange(0, tile_rows) // group_size
    head_ids = kv_head * group_size + tl.arange(0, tile_rows) % group_size
    rows = (row + own).to(tl.int64)
    places = (rows * (num_kv_heads * group_size) + head_ids)[:, None] * head_dim + dims[None, :]
    within = (own < num_own)[:, None] & (dims < head_dim)[None, :]
    positions = position + own
    sums = tl.zeros((tile_rows, padded_dim), tl.float32)
    mass = tl.zeros((tile_rows,), tl.float32)
    highest = tl.full((tile_rows,), NOTHING_YET, tl.float32)

    if sink_query is not None:
        sinks = tl.minimum(num_sinks(sizes, sequence), position + num_own)
        sinks = tl.where(tl.load(own_tile + 7) > 0, sinks, 0)
        own_query = tl.load(sink_query + places, mask=within, other=0.0)
        sums, mass, highest = attend_part(
            sums, mass, highest, own_query, sums_of(own_query, form), positions, 0, sinks,
            0, NO_WINDOW, blocks, table, kv_head, scale, cap, key_levels, value_levels,
            num_kv_heads, block_size, block_numbers, head_dim, padded_dim, form, tile, True, 1,
        )  # fmt: skip
    own_query = tl.load(query + places, mask=within, other=0.0)
    query_sums = sums_of(own_query, form)
    full_end = tl.minimum((position + 1) // tile * tile, end)
    seen_from = 0
    full_begin = begin
    window = None
    if sizes is not None:
        window = tl.load(sizes + 2 * sequence)
        seen_from = first_in_window(position, sizes, sequence, sink_query is not None)
        begin = tl.maximum(begin, seen_from // tile * tile)
        last_from = first_in_window(position + num_own - 1, sizes, sequence, sink_query is not None)
        full_begin = tl.maximum(tl.minimum(tl.cdiv(last_from, tile) * tile, full_end), begin)
        sums, mass, highest = attend_part(
            sums, mass, highest, own_query, query_sums, positions, begin, full_begin,
            seen_from, window, blocks, table, kv_head, scale, cap, key_levels, value_levels,
            num_kv_heads, block_size, block_numbers, head_dim, padded_dim, form, tile, True, 1,
        )  # fmt: skip
    sums, mass, highest = attend_part(
        sums, mass, highest, own_query, query_sums, positions, full_begin, full_end,
        seen_from, window, blocks, table, kv_head, scale, cap, key_levels, value_levels,
        num_kv_heads, block_size, block_numbers, head_dim, padded_dim, form, tile, False, stages,
    )  # fmt: skip
    sums, mass, highest = attend_part(
        sums, mass, highest, own_query, query_sums, positions,
        tl.maximum(full_begin, full_end), end, seen_from, window, blocks, table, kv_head,
        scale, cap, key_levels, value_levels,
        num_kv_heads, block_size, block_numbers, head_dim, padded_dim, form, tile, True, 1,
    )  # fmt: skip
    if sink_logits is not None:
        joins = (own < num_own) & (partial_row < 0)  # else they join what is merged
        own_logits = tl.load(sink_logits + head_ids, mask=joins, other=float("-inf"))
        decay, mass = joined(mass, highest, own_logits)
        sums *= decay[:, None]
    mass = tl.where(mass > 0, mass, 1.0)  # rows past the end of a sequence, or that see nothing
    sums = sums / mass[:, None]
    if partial_row < 0:
        tl.store(out + places, sums.to(out.dtype.element_ty), mask=within)
    else:
        rows = (partial_row + first + own).to(tl.int64)
        parts = rows * (num_kv_heads * group_size) + head_ids
        tl.store(split_sums + parts[:, None] * head_dim + dims[None, :], sums, mask=within)
        tl.store(split_masses + parts, highest + tl.log2(mass), mask=own < num_own)


@triton.jit(do_not_specialize=["first_merge"])
def merge_tiles(
    out, merges, split_sums, split_masses, sink_logits, first_merge,
    num_heads: tl.constexpr, head_dim: tl.constexpr, padded_dim: tl.constexpr,
    max_splits: tl.constexpr,
):  # fmt: skip
    """Merge what the splits of one row and head of a tile left."""
    head, own, index = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    merge = merges + _MERGE_NUMBERS * (first_merge + index)
    num_rows = tl.load(merge + 1)
    if own >= num_rows:
        return
    splits = tl.arange(0, max_splits)
    rows = (tl.load(merge + 2) + own + splits * num_rows).to(tl.int64)
    used = splits < tl.load(merge + 3)
    merged = merged_parts(
        split_sums, split_masses, rows * num_heads + head, used, head, sink_logits,
        head_dim, padded_dim,
    )  # fmt: skip
    dims = tl.arange(0, padded_dim)
    row = (tl.load(merge) + own).to(tl.int64)
    place = out + (row * num_heads + head) * head_dim + dims
    tl.store(place, merged.to(out.dtype.element_ty), mask=dims < head_dim)


def prefill_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    blocks: torch.Tensor,
    block_tables: torch.Tensor,
    tiling: PrefillTiling[torch.Tensor],
    scale: float,
    windows: Windows | None,
    partial: PartialSums,
    codes: PageCodes | None = None,
    *,
    logit_cap: float | None = None,
    sink_logits: torch.Tensor | None = None,
) -> None:
    """Write to `out` what each row of the tiling's tiles sees of its sequence.

    out, query: [tokens, num_heads, head_dim], contiguous; only rows of the tiles change in `out`.
    blocks: [num_blocks, 2, num_kv_heads, block_size, head_dim], keys and then values, those of the
    rows themselves included; a block's lie together. block_tables: [sequences, most blocks] int32,
    anything where no row sees a token. The last row of a sequence is the last token of its context.
    scale > 0. windows: those the tiling was made for; None: all is seen. partial: for at least
    PREFILL_PARTS; written. codes: blocks are [num_blocks, bytes] uint8 of these; queries are turned
    as keys are. logit_cap, sink_logits: as `decode_attention` takes them.
    """
    _, num_heads, head_dim = query.shape
    num_kv_heads, block_size, block_numbers = page_shape(blocks, codes)
    sizes, sink_query = window_tensors(windows)
    kind = tiling.kind
    assert all(each.is_contiguous() for each in (out, query, tiling.tiles, tiling.merges))
    assert all(each is None or each.is_contiguous() for each in (sizes, sink_query))
    assert block_tables.stride(1) == 1
    assert (num_heads, num_kv_heads) == (kind.num_heads, kind.num_kv_heads)
    assert scale > 0
    assert logit_cap is None or logit_cap > 0
    assert sink_logits is None or (len(sink_logits) == num_heads and sink_logits.is_contiguous())
    assert len(partial.sums) >= PREFILL_PARTS
    form = None if codes is None else codes.form
    shape = ProgramShape.of(head_dim, query.dtype, form)
    num_parts = triton.cdiv(kind.query_tokens, shape.rows // kind.group_size)
    padded_dim = triton.next_power_of_2(head_dim)
    for each in tiling.rounds:
        prefill_tile[(num_kv_heads, num_parts, each.num_tiles)](
            out,
            query,
            blocks,
            block_tables,
            tiling.tiles,
            *partial,
            *read_tables(codes),
            sizes,
            sink_query,
            sink_logits,
            each.first_tile,
            block_tables.stride(0),
            scale * LOG2_E,
            None if logit_cap is None else logit_cap * LOG2_E,
            num_kv_heads=num_kv_heads,
            group_size=kind.group_size,
            block_size=block_size,
            block_numbers=block_numbers,
            tile_rows=shape.rows,
            head_dim=head_dim,
            padded_dim=padded_dim,
            tile=shape.keys,
            stages=shape.num_stages,
            form=form,
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
        )
        if each.num_merges:
            merge_tiles[(num_heads, kind.query_tokens, each.num_merges)](
                out,
                tiling.merges,
                *partial,
                sink_logits,
                each.first_merge,
                num_heads=num_heads,
                head_dim=head_dim,
                padded_dim=padded_dim,
                max_splits=triton.next_power_of_2(kind.most_splits),
                num_warps=4,
            )
