"""Values that are the first numbers of keys, as products with values take them.

Latent attention keeps one vector a token, which is both. It lies as a key, tokens side by side; for
the product with values it is turned, so that numbers lie side by side:

    [head_dim / group, block_size, group]  →  [block_size / group, value_dim, group]

A group is one float32 or two bfloat16. Squares of tokens and numbers are turned in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pagoda.kernels.cpu.number import emitted
from pagoda.kernels.cpu.page_readers import Pages
from pagoda.kernels.cpu.routine import compiled, routine_body
from pagoda.kernels.cpu.tile import vector_lanes, vectors
from pagoda.kernels.cpu.vector import (
    I32,
    after,
    index,
    lane_numbers,
    load_vector,
    pointer,
    store_vector,
)

Emit = Callable[[int, Any, int], None]
"""Takes the first token of a square, its first number, and its side."""

_HALF, _PAIR = ir.IntType(16), ir.IntType(64)


@cache
def share_routine(paired: bool, value_dim: int, block_size: int) -> Any:
    """For bfloat16, which come in pairs, or float32; then both sizes are even."""

    def share(
        out: int, keys: int, block_stride: int, table: int, first: int, last: int, levels: int
    ) -> None:
        """out = the values in the blocks table[first] … table[last - 1], one after the other.

        table: int32. Block b has its keys at keys + b · block_stride bytes. levels: not read.
        """
        _share((out, keys, block_stride, table, first, last, levels), paired, value_dim, block_size)

    return compiled(share, 7)


@emitted
def _share(typing: Any, args: Any, paired: Any, value_dim: Any, block_size: Any) -> Any:
    group = 1 + paired.literal_value
    width, size = value_dim.literal_value, block_size.literal_value

    def emit(builder: Any, values: Sequence[Any]) -> None:
        out, keys, block_stride, table, first, last, _ = values
        pages = Pages(builder, table, block_stride)

        def turn(
            source: Any, target: Any, first_token: int, token: int, number: Any, side: int
        ) -> None:
            """A square of tokens and numbers, from these on; `token` counts from the first."""
            token += first_token
            begin = builder.mul(builder.udiv(number, index(group)), index(size))
            rows = [
                _by_number(builder, after(builder, source, begin, i * size + token), side, group)
                for i in range(side // group)
            ]
            for i, column in enumerate(_turned(builder, rows)):
                place = after(builder, target, number, (token // group + i) * width)
                store_vector(builder, column, place)

        with cgutils.for_range_slice(builder, first, last, index(1)) as (block, count):
            source = pages.at(keys, block, last, 0)
            start = builder.mul(count, index(width * size // group))
            target = builder.gep(pointer(builder, out), [start])
            for token, tokens in vectors(vector_lanes(size)):
                _for_each_square(builder, width, tokens, partial(turn, source, target, token))

    return routine_body(args, (paired, value_dim, block_size), emit)


def _for_each_square(builder: Any, width: int, tokens: int, emit: Emit) -> None:
    """Cut the numbers of some tokens into squares, the largest first."""
    whole = width // tokens
    with cgutils.for_range(builder, index(whole)) as loop:
        emit(0, builder.mul(loop.index, index(tokens)), tokens)
    for column, side in vectors(vector_lanes(width - whole * tokens)):
        for token in range(0, tokens, side):
            emit(token, index(whole * tokens + column), side)


def _by_number(builder: Any, source: Any, tokens: int, group: int) -> Any:
    """A group of numbers of some tokens, as elements: of four bytes, a token's number each.

    Of pairs they are of eight bytes: of two tokens the lower numbers, then the upper ones.
    """
    row = load_vector(builder, source, ir.VectorType(I32, tokens))
    if group == 1:
        return row
    halves = builder.bitcast(row, ir.VectorType(_HALF, 2 * tokens))
    order = [4 * (lane // 4) + (0, 2, 1, 3)[lane % 4] for lane in range(2 * tokens)]
    halves = builder.shuffle_vector(halves, halves, lane_numbers(order))
    return builder.bitcast(halves, ir.VectorType(_PAIR, tokens // 2))


def _turned(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """The columns of a square whose side is a power of two: ever larger parts change places."""
    side, turned, step = len(rows), list(rows), 1
    while step < side:
        lanes = range(side)
        upper = lane_numbers([side + lane - step if lane & step else lane for lane in lanes])
        lower = lane_numbers([side + lane if lane & step else lane + step for lane in lanes])
        for i in lanes:
            if not i & step:
                pair = turned[i], turned[i + step]
                turned[i] = builder.shuffle_vector(*pair, upper)
                turned[i + step] = builder.shuffle_vector(*pair, lower)
        step *= 2
    return turned
