"""Rows in the order of their experts, and tiles of them, sorted where they are.

A pair is a row and one of its experts; pair i is of row i // num_used. Nobody waits for what comes
out: of tiles there are as many as there can be at most, some of them empty.

    order  | pairs of expert 0, ascending | of expert 1 |   of expert 3 | …
    tiles  | 0 | 0 | 0                    | 1           |   3 | 3       | … | empty | empty
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from pagoda.kernels.gpu.expert_tiles import tile_bound, tile_rows

_CHUNK = 1024


class ExpertRows(NamedTuple):
    """Where `sort_rows` writes, for P pairs and E experts; all int32 and contiguous."""

    order: Tensor
    """[P], pairs by expert, those of one ascending"""
    counts: Tensor
    """[E], pairs of each"""
    tiles: Tensor
    """[tile_bound or more, 3]: an expert, and the first place in `order` and the one behind the
    last; equal where the tile is empty"""
    num_used: int
    """Experts of each row."""

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return tile_rows(len(self.order), len(self.counts))

    @property
    def num_tiles(self) -> int:
        """Those that are written, at least as many as there are."""
        return tile_bound(len(self.order), len(self.counts))


@triton.jit(do_not_specialize=["num_pairs"])
def count_kernel(counts, chosen, num_pairs, chunk: tl.constexpr):
    """One program counts one expert's pairs."""
    expert = tl.program_id(0)
    total = 0
    for start in range(0, num_pairs, chunk):
        pair = start + tl.arange(0, chunk)
        is_own = tl.load(chosen + pair, mask=pair < num_pairs, other=-1) == expert
        total += tl.sum(is_own.to(tl.int32), axis=0)
    tl.store(counts + expert, total)


@triton.jit
def put_tiles(tiles, expert, tile, inside, first, end):
    """Write some tiles; all but `tiles` are blocks, or numbers for all."""
    own = tiles + tile * 3
    tl.store(own, expert, mask=inside)
    tl.store(own + 1, first, mask=inside)
    tl.store(own + 2, end, mask=inside)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def place_kernel(
    order, tiles, counts, chosen, num_pairs, num_tiles,
    num_experts: tl.constexpr, experts_tile: tl.constexpr, height: tl.constexpr,
    chunk: tl.constexpr,
):  # fmt: skip
    """One program has one expert, whose pairs and tiles are behind those of the ones before."""
    expert = tl.program_id(0)
    number = tl.arange(0, experts_tile)
    count = tl.load(counts + number, mask=number < num_experts, other=0)
    heights = (count + height - 1) // height
    first = tl.sum(tl.where(number < expert, count, 0), axis=0)
    end = first + tl.sum(tl.where(number == expert, count, 0), axis=0)
    first_tile = tl.sum(tl.where(number < expert, heights, 0), axis=0)
    end_tile = first_tile + (end - first + height - 1) // height
    lane = tl.arange(0, chunk)
    if first < end:
        before = first
        for start in range(0, num_pairs, chunk):
            pair = start + lane
            is_own = tl.load(chosen + pair, mask=pair < num_pairs, other=-1) == expert
            hits = is_own.to(tl.int32)
            tl.store(order + before + tl.cumsum(hits, axis=0) - 1, pair, mask=is_own)
            before += tl.sum(hits, axis=0)
        for start in range(first_tile, end_tile, chunk):
            tile = start + lane
            place = first + (tile - first_tile) * height
            put_tiles(tiles, expert, tile, tile < end_tile, place, tl.minimum(place + height, end))
    if expert == num_experts - 1:
        for start in range(end_tile, num_tiles, chunk):
            tile = start + lane
            put_tiles(tiles, expert, tile, tile < num_tiles, num_pairs, num_pairs)


def sort_rows(rows: ExpertRows, chosen: Tensor) -> None:
    """Sort the pairs of chosen, [T, num_used] int32, contiguous, into `rows`."""
    num_pairs, num_experts = len(rows.order), len(rows.counts)
    assert chosen.numel() == num_pairs
    assert chosen.is_contiguous()
    assert rows.tiles.is_contiguous()
    assert len(rows.tiles) >= rows.num_tiles
    grid = (num_experts,)
    count_kernel[grid](rows.counts, chosen, num_pairs, chunk=_CHUNK)
    place_kernel[grid](
        rows.order, rows.tiles, rows.counts, chosen, num_pairs, rows.num_tiles,
        num_experts=num_experts, experts_tile=triton.next_power_of_2(num_experts),
        height=rows.height, chunk=_CHUNK,
    )  # fmt: skip
