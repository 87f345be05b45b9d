"""The product of each head's part of rows with a weight of its own, shared out among threads."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from pagoda.kernels.block_types import PANEL
from pagoda.kernels.cpu.multiply import ProductRoutines, multiply_plain, next_item
from pagoda.kernels.cpu.number import integer_at
from pagoda.kernels.cpu.panels import ENTRY_BYTES
from pagoda.kernels.cpu.routine import call
from pagoda.kernels.cpu.team import Team, finish

_CHUNK_ROWS = 96
"""Most rows of an item."""


class HeadWeights(NamedTuple):
    """A weight of each head, [height, depth], one below the other, in plain panels."""

    table: int
    """Address of the table of panels, of which each head has whole ones."""
    num_heads: int
    height: int
    """Numbers that a head's part becomes: rows of its weight, without what fills its last panel."""
    depth: int
    """Groups of a head's part."""


class HeadTarget(NamedTuple):
    """What becomes of the products."""

    use: int
    """Address of a `sum_routine`."""
    out: int
    row_bytes: int
    """From row to row."""
    head_bytes: int
    """From head to head."""
    item_size: int
    """From number to number."""
    no_bias: int
    """Address: `PANEL` float32 zeros."""


@njit(error_model="numpy")
def multiply_heads(
    phase: int, team: Team, routines: ProductRoutines, memory: int, target: HeadTarget, x: int,
    rows: int, weights: HeadWeights, following: int,
) -> None:  # fmt: skip
    """A thread's share of out[row, head] = weights[head] · x[row, head].

    phase: one that nobody has begun, the same for all threads. memory: `MEMORY_BYTES` of the
    thread's own. x: [rows, num_heads, depth groups] of the weights' dtype. following: as for
    `multiply`.
    """
    panels = (weights.height + PANEL - 1) // PANEL
    chunks = (rows + _CHUNK_ROWS - 1) // _CHUNK_ROWS
    chunk = (rows + chunks - 1) // chunks
    total = weights.num_heads * panels * chunks
    stride = weights.num_heads * weights.depth
    mine = 0
    item = next_item(team, phase, total, chunks)
    while item < total:
        upcoming = next_item(team, phase, total, chunks)
        ahead = integer_at(following, 0, 64)
        if upcoming < total:
            ahead = integer_at(weights.table + upcoming // chunks * ENTRY_BYTES, 0, 64)
        place, start = item // chunks, item % chunks * chunk
        head, column = place // panels, place % panels * PANEL
        count = min(chunk, rows - start)
        part = x + (start * stride + head * weights.depth) * 4
        panel = integer_at(weights.table + place * ENTRY_BYTES, 0, 64)
        multiply_plain(routines, memory, part, count, stride, weights.depth, panel, ahead)
        out = target.out + start * target.row_bytes + head * target.head_bytes
        call(
            target.use,
            (out + column * target.item_size, target.row_bytes, memory, count,
             min(PANEL, weights.height - column), target.no_bias, target.no_bias),
        )  # fmt: skip
        mine += 1
        item = upcoming
    finish(phase, mine, total)
