"""Attention to latents of one new token per sequence, split over the sequence.

As `decode_attention`, whose splits are merged the same way: a split is some tokens of a sequence
for some of the rows of a token, one for each head, and how many there are is a function of the
sequence's length and of the model alone. Many sequences are done in rounds, one launch after the
other, which use the same memory for parts: that changes no result.

    grid (row tiles, sequences, programs) --> normalised sums and log-sum-exps --> merged
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagoda.kernels.gpu.attention_tile import LOG2_E
from pagoda.kernels.gpu.decode_attention import merge_splits, split_length
from pagoda.kernels.gpu.latent_form import LatentForm, latent_pages
from pagoda.kernels.gpu.latent_tile import (
    LatentProgram,
    LatentWidths,
    attend_latents,
    load_queries,
    no_sums,
)
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import MAX_SPLITS, latent_rows_of_round

_LEAST_TOKENS, _MOST_TOKENS, _HEADS = 256, 1024, 16
_MOST_PROGRAMS = 8192
"""About, of a launch: where rows are many, a program has several splits."""


def split_tokens(num_heads: int) -> int:
    """Tokens of the shortest split, a multiple of every tile.

    It writes and reads again 2 · heads · rank numbers in float32 where it read tokens · (rank +
    rope_dim) of two bytes: of 16 heads 22% more, and no more of 64. But few splits leave most of a
    GPU idle where one sequence is alone.
    """
    wanted = _LEAST_TOKENS * -(-num_heads // _HEADS)
    return min(_MOST_TOKENS, triton.next_power_of_2(wanted))


@triton.jit(do_not_specialize=["table_width", "first"])
def latent_splits(
    out, query, blocks, block_tables, context_lens, rows, sequences, split_sums, split_masses,
    table_width, first, scale,
    num_heads: tl.constexpr, block_size: tl.constexpr, block_numbers: tl.constexpr,
    rank: tl.constexpr, rope_dim: tl.constexpr, padded_rank: tl.constexpr,
    padded_rope: tl.constexpr, tile_rows: tl.constexpr, tile: tl.constexpr, least: tl.constexpr,
    max_splits: tl.constexpr, stages: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """Splits of some heads of one token: program i of n has the splits i, i + n, i + 2 n, …

    A token that has one split goes to `out` at once. first: number of the round's first row.
    """
    part, index, program = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(rows + first + index).to(tl.int64)
    sequence = tl.load(sequences + first + index).to(tl.int64)
    context_len = tl.load(context_lens + sequence)
    length = split_length(context_len, tile, least, max_splits)
    num_splits = tl.maximum(tl.cdiv(context_len, length), 1)
    if program >= num_splits:
        return
    table = block_tables + sequence * table_width
    head = part * tile_rows + tl.arange(0, tile_rows)
    used = head < num_heads
    own = row * num_heads + head
    absorbed, turned = load_queries(query, own, used, rank, rope_dim, padded_rank, padded_rope)
    dims = tl.arange(0, padded_rank)
    within = used[:, None] & (dims < rank)[None, :]
    for split in range(program, num_splits, tl.num_programs(2)):
        begin = split * length
        end = tl.minimum(begin + length, context_len)
        sums, mass, highest = no_sums(tile_rows, padded_rank)
        sums, mass, highest = attend_latents(
            sums, mass, highest, absorbed, turned, None, begin, end, blocks, table, scale,
            block_size, block_numbers, rank, rope_dim, padded_rank, padded_rope, tile, stages,
            form,
        )  # fmt: skip
        sums = sums / tl.where(mass > 0, mass, 1.0)[:, None]  # a context of no tokens: zeros
        if num_splits == 1:
            places = out + own[:, None] * rank + dims[None, :]
            tl.store(places, sums.to(out.dtype.element_ty), mask=within)
        else:
            parts = (index.to(tl.int64) * num_heads + head) * max_splits + split
            tl.store(split_sums + parts[:, None] * rank + dims[None, :], sums, mask=within)
            tl.store(split_masses + parts, highest + tl.log2(mass), mask=used)


def latent_decode(
    out: torch.Tensor,
    query: torch.Tensor,
    blocks: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    rows: torch.Tensor,
    sequences: torch.Tensor,
    scale: float,
    partial: PartialSums,
    form: LatentForm | None = None,
) -> None:
    """Write to `out` what each of the given tokens sees of its sequence.

    query: [tokens, num_heads, width], absorbed; out: [tokens, num_heads, rank], of which only the
    given tokens change; both contiguous. blocks: [num_blocks, block_size, width], the tokens' own
    latents included; a block's lie together. Others as `decode_attention` takes them. scale > 0.
    partial: for at least latent_decode_parts(n, num_heads); written. form: blocks are [num_blocks,
    bytes] uint8 of it.
    """
    _, num_heads, width = query.shape
    rank = out.shape[2]
    block_size, block_numbers = latent_pages(blocks, width, form)
    assert width > rank
    assert out.shape[:2] == query.shape[:2]
    assert all(each.is_contiguous() for each in (out, query))
    assert block_tables.stride(1) == 1
    assert partial.sums.shape[1] == rank
    assert scale > 0
    program = LatentProgram.of(num_heads, rank, query.dtype, form)
    widths = LatentWidths.of(rank, width - rank)
    least = split_tokens(num_heads)
    assert least % program.tile == 0
    # Longer contexts than the tables hold do not occur: no programs for their splits.
    num_splits = min(MAX_SPLITS, triton.cdiv(block_tables.shape[1] * block_size, least))
    row_tiles = triton.cdiv(num_heads, program.rows)
    of_round = latent_rows_of_round(num_heads)
    for first in range(0, len(rows), of_round):
        count = min(of_round, len(rows) - first)
        assert count * num_heads * MAX_SPLITS <= len(partial.sums)
        num_programs = min(num_splits, triton.cdiv(_MOST_PROGRAMS, row_tiles * count))
        latent_splits[(row_tiles, count, num_programs)](
            out, query, blocks, block_tables, context_lens, rows, sequences, *partial,
            block_tables.stride(0), first, scale * LOG2_E,
            num_heads=num_heads, block_size=block_size, block_numbers=block_numbers,
            **widths._asdict(), tile_rows=program.rows, tile=program.tile, least=least,
            max_splits=MAX_SPLITS, stages=program.num_stages, form=form,
            num_warps=program.num_warps, num_stages=program.num_stages,
        )  # fmt: skip
        if num_splits > 1:
            merge_splits[(num_heads, count)](
                out, *partial, context_lens, rows[first:], sequences[first:], None, None,
                num_heads=num_heads, head_dim=rank, padded_dim=widths.padded_rank,
                tile=program.tile, least=least, max_splits=MAX_SPLITS, has_sinks=False,
                num_warps=8,
            )  # fmt: skip
