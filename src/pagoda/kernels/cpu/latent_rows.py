"""From the products of latent attention to queries and the cache: norm, rotation, the write."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import njit

from pagoda.kernels.cpu.encode import encode_routine
from pagoda.kernels.cpu.norm import norm_factor
from pagoda.kernels.cpu.number import integer_at, number_at, put_number
from pagoda.kernels.cpu.rotary import MOST_ROWS, rotate_halves
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.team import claim, finish
from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.page_layout import PageLayout


class LatentShape(NamedTuple):
    """Numbers of latent attention; see `LatentAttentionSpec`."""

    num_heads: int
    q_rank: int
    """0: queries are made of the stream."""
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


class LatentRows(NamedTuple):
    """What a step's rows are made into on the way: addresses."""

    query: int
    """[rows, num_heads * (nope_dim + rope_dim)] float32, changed"""
    down: int
    """[rows, rank + rope_dim] float32, changed: latent and shared key"""
    plain: int
    """[rows, num_heads * nope_dim] of the weights' dtype: what of queries is not rotated"""
    queries: int
    """[rows, num_heads * (rank + rope_dim)] float32: what meets the cache"""
    sink_queries: int
    """As `queries`, rotated for the distance of sinks; 0: no row sees sinks apart"""


class LatentWrite(NamedTuple):
    """Addresses of what a row's latent is made codes by; 0: it stays plain numbers."""

    encode: int
    """`encode`, for a group"""
    encode_last: int
    """For the last group, which may be smaller"""
    group_size: int
    """Numbers of a group; no address."""


@cache
def latent_write(code: LatentCode | None) -> LatentWrite:
    """For latents in codes, or as plain numbers."""
    if code is None:
        return LatentWrite(0, 0, 0)
    whole, last = (encode_routine(group.text, "").address for group in (code.whole, code.last))
    return LatentWrite(whole, last, code.group_size)


@cache
def latent_routine(paired_weights: bool, paired_cache: bool) -> Any:
    """For weights, and plain numbers of a cache: of bfloat16, which come in pairs, or float32."""
    group = 1 + paired_cache

    def latent_row(
        query: int, down: int, plain: int, queries: int, numbers: int, first: int, offset: int,
        block_size: int, num_heads: int, nope_dim: int, rope_dim: int, rank: int, norm: int,
        eps: int, cosines: int, sines: int, sink_queries: int, sink_cosines: int, sink_sines: int,
    ) -> None:  # fmt: skip
        """Norm and rotate one row, and write its latent and key at `offset` of a block.

        The first four, and sink_queries, are a row of each of `LatentRows`; of `queries`, and of
        sink_queries unless that is 0, the last rope_dim numbers of each head are written. Of latent
        and key those from number `first` on are written to the block, whose numbers of that kind
        begin at `numbers`. norm: [rank], eps: [1], cosines, sines, and likewise of sinks:
        [rope_dim / 2] float32.
        """
        half = rope_dim // 2
        factor = norm_factor(down, rank, number_at(eps, 0, False))
        for i in range(rank):
            value = number_at(down, i, False) * factor * number_at(norm, i, False)
            put_number(down, i, value, False)
        rotate_halves(down + rank * 4, half, cosines, sines)
        for i in range((rank + rope_dim - first) // group):
            for g in range(group):
                number = number_at(down, first + i * group + g, False)
                put_number(numbers, (i * block_size + offset) * group + g, number, paired_cache)
        for head in range(num_heads):
            own = query + head * (nope_dim + rope_dim) * 4
            for i in range(nope_dim):
                put_number(plain, head * nope_dim + i, number_at(own, i, False), paired_weights)
            place = head * (rank + rope_dim) + rank
            if sink_queries != 0:
                for i in range(rope_dim):
                    number = number_at(own, nope_dim + i, False)
                    put_number(sink_queries, place + i, number, False)
                rotate_halves(sink_queries + place * 4, half, sink_cosines, sink_sines)
            rotate_halves(own + nope_dim * 4, half, cosines, sines)
            for i in range(rope_dim):
                put_number(queries, place + i, number_at(own, nope_dim + i, False), False)

    return compiled(latent_row, 19)


@njit(error_model="numpy")
def _encode_latent(
    write: LatentWrite, latent: int, rank: int, block: int, offset: int, block_size: int,
    scales: int, memory: int,
) -> None:  # fmt: skip
    """Write a latent, [rank] float32, as codes and scales at `offset` of a block; see
    `latent_code`."""
    size = write.group_size
    for start in range(0, rank, size):
        routine = write.encode if start + size < rank else write.encode_last
        scale = scales + (start // size * block_size + offset) * 4
        call(
            routine,
            (latent + start * 4, block + start * block_size, offset, block_size, 0, scale, scale,
             0, 0, 0, memory),
        )  # fmt: skip


@njit(error_model="numpy")
def write_latents(
    phase: int, num_threads: int, routine: int, write: LatentWrite, rows: LatentRows, count: int,
    shape: LatentShape, weight_size: int, blocks: int, layout: PageLayout, block_size: int,
    slot_mapping: int, positions: int, sink_positions: int, cosines: int, sines: int, norm: int,
    eps: int, memory: int,
) -> None:  # fmt: skip
    """A thread's share of `latent_row` for `count` rows.

    phase: one that nobody has begun, the same for all threads; num_threads: how many those are.
    weight_size: bytes of a weight. blocks: the layer's, as `layout` says. The slots of this step
    are written. slot_mapping: [rows] int64, all distinct; positions: [rows] int32. sink_positions:
    likewise, at which rows' queries are rotated to go to those for sinks; 0: there are none.
    cosines, sines: [positions, rope_dim / 2] float32. memory: the thread's own, [2, a group's
    numbers] float32.
    """
    heads, half = shape.num_heads, shape.rope_dim // 2
    query_bytes = heads * (shape.nope_dim + shape.rope_dim) * 4
    down_bytes = (shape.rank + shape.rope_dim) * 4
    first = shape.rank if write.encode != 0 else 0
    size = min(MOST_ROWS, (count + num_threads - 1) // num_threads)
    total = (count + size - 1) // size
    mine = 0
    item = claim(phase)
    while item < total:
        for r in range(item * size, min((item + 1) * size, count)):
            slot = integer_at(slot_mapping, r, 64)
            block, offset = blocks + slot // block_size * layout.block_bytes, slot % block_size
            down, angles = rows.down + r * down_bytes, integer_at(positions, r, 32) * half * 4
            sink_queries, sink_angles = 0, angles
            if sink_positions != 0:
                sink_queries = rows.sink_queries + r * heads * down_bytes
                sink_angles = integer_at(sink_positions, r, 32) * half * 4
            call(
                routine,
                (rows.query + r * query_bytes, down,
                 rows.plain + r * heads * shape.nope_dim * weight_size,
                 rows.queries + r * heads * down_bytes, block + first * block_size, first, offset,
                 block_size, heads, shape.nope_dim, shape.rope_dim, shape.rank, norm, eps,
                 cosines + angles, sines + angles, sink_queries, cosines + sink_angles,
                 sines + sink_angles),
            )  # fmt: skip
            if write.encode != 0:
                _encode_latent(
                    write, down, shape.rank, block, offset, block_size, block + layout.key_scales,
                    memory,
                )  # fmt: skip
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)


@njit(error_model="numpy")
def copy_absorbed(
    phase: int, num_threads: int, rows: LatentRows, count: int, shape: LatentShape
) -> None:  # fmt: skip
    """A thread's share of giving queries for sinks what of queries is not rotated, once it has been
    absorbed; phase, num_threads and count as `write_latents` takes them."""
    width = shape.rank + shape.rope_dim
    size = min(MOST_ROWS, (count + num_threads - 1) // num_threads)
    total = (count + size - 1) // size
    mine = 0
    item = claim(phase)
    while item < total:
        for r in range(item * size, min((item + 1) * size, count)):
            for head in range(shape.num_heads):
                begin = (r * shape.num_heads + head) * width
                for i in range(begin, begin + shape.rank):
                    put_number(rows.sink_queries, i, number_at(rows.queries, i, False), False)
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
