"""A thread's own memory while it attends to splits of contexts.

Kernels and Python ask for it alike: its functions are plain ones, which kernels compile with
themselves.
"""

from __future__ import annotations

from typing import NamedTuple

from numba.extending import register_jitable

from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.page_product import HeadRoutines
from pagoda.kernels.cpu.softmax import SCALE_ROWS, WIDTH
from pagoda.kernels.cpu.vector import LINE_BYTES

_SPLIT_TOKENS = 256


class Scratch(NamedTuple):
    """Addresses."""

    query: int
    scores: int
    weights: int
    sums: int
    highest: int
    mass: int
    added: int
    added_highest: int
    added_mass: int
    query_sums: int
    query_steps: int
    """[rows] float32: what 1 stands for in queries that are whole numbers"""
    offsets: int
    scales: int
    """[heads, `SCALE_ROWS`, columns] float32"""
    keys: int
    """K of a head and split as plain or whole numbers, as products take them, and after them the
    numbers of their blocks"""
    values: int
    """V likewise"""
    latents: int
    """Coded latents of a split as plain numbers, and after them the numbers of their blocks"""
    next_keys: int
    """A line of addresses: of the K that is read after a split, block by block"""
    width: int
    """Columns of scores and weights; no address."""
    end: int


@register_jitable(error_model="numpy")
def split_tokens(block_size: int) -> int:
    """Tokens of context in a split: whole blocks, near 256 tokens."""
    return block_size * -(-_SPLIT_TOKENS // block_size)


@register_jitable(error_model="numpy")
def scratch_at(start: int, rows: int, shape: HeadShape, routines: HeadRoutines) -> Scratch:
    """Memory for items of up to so many rows, from an address on that is a multiple of 64."""
    tokens = split_tokens(shape.block_size)
    columns = tokens + routines.score_blocks * shape.block_size
    width = -(-columns // WIDTH) * WIDTH
    line = -(-rows // 16) * LINE_BYTES
    scores = start + line * shape.head_dim
    weights = scores + line * width
    sums = weights + line * width
    highest = sums + line * shape.value_dim
    mass, added = highest + line, highest + 2 * line
    added_highest = added + line * shape.value_dim
    query_sums = added_highest + 2 * line
    scales = query_sums + 3 * line
    keys = scales
    if routines.gather_scales != 0:
        keys += shape.num_kv_heads * SCALE_ROWS * width * 4
    numbers = tokens * (shape.head_dim + 1) * 4
    numbers += -numbers % LINE_BYTES
    values = keys
    if routines.unpack_keys != 0:
        values += numbers
    latents = values
    if routines.unpack_values != 0:
        latents += numbers
    next_keys = latents
    if routines.unpack_latents != 0:
        next_keys += numbers
    end = next_keys + LINE_BYTES
    return Scratch(
        start, scores, weights, sums, highest, mass, added, added_highest, added_highest + line,
        query_sums, query_sums + line, query_sums + 2 * line, scales, keys, values, latents,
        next_keys, width, end,
    )  # fmt: skip


@register_jitable(error_model="numpy")
def scratch_of_rows(
    scratch: Scratch, first: int, shape: HeadShape, routines: HeadRoutines
) -> Scratch:
    """The same for the products of rows from number `first` on: scores and weights are all rows'
    in turn."""
    return Scratch(
        scratch.query + first * routines.query_groups * 4, scratch.scores, scratch.weights,
        scratch.sums, scratch.highest, scratch.mass, scratch.added + first * shape.value_dim * 4,
        scratch.added_highest + first * 4, scratch.added_mass + first * 4,
        scratch.query_sums + first * 4, scratch.query_steps + first * 4,
        scratch.offsets + first * 4, scratch.scales, scratch.keys,
        scratch.values, scratch.latents, scratch.next_keys, scratch.width, scratch.end,
    )  # fmt: skip
