"""Attention to latents of several tokens per sequence: chunked and causal.

As `prefill_attention`, and by the same tilings. A tile has some tokens of one sequence; its rows, a
token's heads one behind the other, are dealt out to programs of so many rows each, whose latents
are read once for all of them. What a row may not see is masked in every tile of tokens: beside two
products of such depth that is little.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagoda.kernels.gpu.attention_tile import LOG2_E
from pagoda.kernels.gpu.latent_form import LatentForm, latent_pages
from pagoda.kernels.gpu.latent_tile import (
    LatentProgram,
    LatentWidths,
    attend_latents,
    load_queries,
    no_sums,
)
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import PREFILL_PARTS
from pagoda.kernels.gpu.prefill_attention import merge_tiles
from pagoda.kernels.gpu.prefill_tiling import TILE_NUMBERS, PrefillTiling

_TILE_NUMBERS = tl.constexpr(TILE_NUMBERS)


@triton.jit(do_not_specialize=["first_tile", "table_width"])
def latent_tiles(
    out, query, blocks, block_tables, tiles, split_sums, split_masses, first_tile, table_width,
    scale,
    num_heads: tl.constexpr, block_size: tl.constexpr, block_numbers: tl.constexpr,
    rank: tl.constexpr, rope_dim: tl.constexpr, padded_rank: tl.constexpr,
    padded_rope: tl.constexpr, tile_rows: tl.constexpr, tile: tl.constexpr, stages: tl.constexpr,
    form: tl.constexpr,
):  # fmt: skip
    """Attends some rows of one tile to its tokens; what is not split goes to `out` at once."""
    part, index = tl.program_id(0), tl.program_id(1)
    own_tile = tiles + _TILE_NUMBERS * (first_tile + index)
    num_tokens = tl.load(own_tile + 2)
    first = part * tile_rows
    if first >= num_tokens * num_heads:
        return
    sequence = tl.load(own_tile).to(tl.int64)
    position = tl.load(own_tile + 3)
    begin = tl.load(own_tile + 4)
    last = tl.minimum((first + tile_rows - 1) // num_heads, num_tokens - 1)
    end = tl.minimum(tl.load(own_tile + 5), position + last + 1)
    partial_row = tl.load(own_tile + 6)
    table = block_tables + sequence * table_width

    row = first + tl.arange(0, tile_rows)
    used = row < num_tokens * num_heads
    positions = position + row // num_heads
    own = tl.load(own_tile + 1).to(tl.int64) * num_heads + row
    absorbed, turned = load_queries(query, own, used, rank, rope_dim, padded_rank, padded_rope)
    sums, mass, highest = no_sums(tile_rows, padded_rank)
    sums, mass, highest = attend_latents(
        sums, mass, highest, absorbed, turned, positions, begin, end, blocks, table, scale,
        block_size, block_numbers, rank, rope_dim, padded_rank, padded_rope, tile, stages, form,
    )  # fmt: skip
    mass = tl.where(mass > 0, mass, 1.0)  # rows past the end of a sequence, or that see nothing
    sums = sums / mass[:, None]
    dims = tl.arange(0, padded_rank)
    within = used[:, None] & (dims < rank)[None, :]
    if partial_row < 0:
        places = out + own[:, None] * rank + dims[None, :]
        tl.store(places, sums.to(out.dtype.element_ty), mask=within)
    else:
        parts = partial_row.to(tl.int64) * num_heads + row
        tl.store(split_sums + parts[:, None] * rank + dims[None, :], sums, mask=within)
        tl.store(split_masses + parts, highest + tl.log2(mass), mask=used)


def latent_prefill(
    out: torch.Tensor,
    query: torch.Tensor,
    blocks: torch.Tensor,
    block_tables: torch.Tensor,
    tiling: PrefillTiling[torch.Tensor],
    scale: float,
    partial: PartialSums,
    form: LatentForm | None = None,
) -> None:
    """Write to `out` what each token of the tiling's tiles sees of its sequence.

    query: [tokens, num_heads, width], absorbed; out: [tokens, num_heads, rank], of which only
    tokens of the tiles change; both contiguous. blocks: [num_blocks, block_size, width], the
    tokens' own latents included; a block's lie together. Others as `prefill_attention` takes them.
    scale > 0. partial: for at least PREFILL_PARTS; written. form: blocks are [num_blocks, bytes]
    uint8 of it.
    """
    _, num_heads, width = query.shape
    rank, kind = out.shape[2], tiling.kind
    block_size, block_numbers = latent_pages(blocks, width, form)
    assert width > rank
    assert out.shape[:2] == query.shape[:2]
    assert all(each.is_contiguous() for each in (out, query, tiling.tiles, tiling.merges))
    assert block_tables.stride(1) == 1
    assert (num_heads, 1) == (kind.num_heads, kind.num_kv_heads)
    assert len(partial.sums) >= PREFILL_PARTS
    assert partial.sums.shape[1] == rank
    assert scale > 0
    program = LatentProgram.of(kind.query_tokens * num_heads, rank, query.dtype, form)
    widths = LatentWidths.of(rank, width - rank)
    num_parts = triton.cdiv(kind.query_tokens * num_heads, program.rows)
    for each in tiling.rounds:
        latent_tiles[(num_parts, each.num_tiles)](
            out, query, blocks, block_tables, tiling.tiles, *partial, each.first_tile,
            block_tables.stride(0), scale * LOG2_E,
            num_heads=num_heads, block_size=block_size, block_numbers=block_numbers,
            **widths._asdict(), tile_rows=program.rows, tile=program.tile,
            stages=program.num_stages, form=form,
            num_warps=program.num_warps, num_stages=program.num_stages,
        )  # fmt: skip
        if each.num_merges:
            merge_tiles[(num_heads, kind.query_tokens, each.num_merges)](
                out, tiling.merges, *partial, None, each.first_merge,
                num_heads=num_heads, head_dim=rank, padded_dim=widths.padded_rank,
                max_splits=triton.next_power_of_2(kind.most_splits), num_warps=8,
            )  # fmt: skip
