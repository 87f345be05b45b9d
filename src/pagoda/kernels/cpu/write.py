"""The write of a row's keys and values to its slot: as plain numbers, or as codes."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import njit

from pagoda.kernels.cpu.encode import encode_routine
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.level_tables import HEAD_TABLE_BYTES
from pagoda.kernels.cpu.number import number_at, put_number
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.pages import LayerPages, matrix_bytes
from pagoda.kernels.cpu.routine import call, compiled
from pagoda.kernels.cpu.turn import turn_routine
from pagoda.kernels.vector_code import SCALE_BYTES, TABLE_SIZE, VectorCode


class WriteRoutines(NamedTuple):
    """Addresses of what a row's write calls; 0: what this form does without."""

    plain: int
    """`write_plain`"""
    key: int
    """`encode`, for keys and for values"""
    value: int
    turn: int
    """`turn_rows`"""
    key_scale: int
    """Bytes of a scale; no address."""
    value_scale: int


@cache
def write_routines(form: PageForm, key_fit: str = "", value_fit: str = "") -> WriteRoutines:
    """For a cache of that form; each fit is one that `encode_routine` knows."""
    if form.key is None or form.value is None:
        return WriteRoutines(write_routine(form.paired).address, 0, 0, 0, 0, 0)
    return WriteRoutines(
        0,
        encode_routine(form.key.text, key_fit).address,
        encode_routine(form.value.text, value_fit).address,
        turn_routine(form.head_dim, form.paired).address,
        _scale_bytes(form.key),
        _scale_bytes(form.value),
    )


@cache
def write_routine(paired: bool) -> Any:
    """For a cache of bfloat16, which come in pairs, or of float32."""

    def write_plain(
        keys: int, values: int, block: int, offset: int, num_kv_heads: int, head_dim: int,
        block_size: int,
    ) -> None:  # fmt: skip
        """Write K and V, [num_kv_heads, head_dim] float32 each, at `offset` of a block.

        block: [2 num_kv_heads * head_dim * block_size] of the routine's dtype, laid out as
        `storage` says.
        """
        group, size = 2 if paired else 1, head_dim * block_size
        for h in range(num_kv_heads):
            key, value = keys + h * head_dim * 4, values + h * head_dim * 4
            start = h * size + offset * group
            for i in range(head_dim // group):
                for g in range(group):
                    number = number_at(key, i * group + g, False)
                    put_number(block, start + i * group * block_size + g, number, paired)
            start = (num_kv_heads + h) * size + offset // group * group * head_dim + offset % group
            for i in range(head_dim):
                put_number(block, start + i * group, number_at(value, i, False), paired)

    return compiled(write_plain, 7)


@njit(error_model="numpy")
def write_row(
    routines: WriteRoutines, row: int, block: int, offset: int, pages: LayerPages,
    shape: HeadShape, memory: int,
) -> None:  # fmt: skip
    """Write a row's keys and values at `offset` of a block.

    row: [(num_heads + 2 num_kv_heads) * head_dim] float32: queries, keys, values, in the basis that
    codes are in. memory: [2, head_dim] float32.
    """
    num_kv_heads, head_dim = shape.num_kv_heads, shape.head_dim
    keys = row + num_kv_heads * shape.group_size * head_dim * 4
    values = keys + num_kv_heads * head_dim * 4
    if routines.plain != 0:
        call(
            routines.plain,
            (keys, values, block, offset, num_kv_heads, head_dim, shape.block_size),
        )
        return
    codes, layout = pages.codes, pages.layout
    for h in range(num_kv_heads):
        scale = block + layout.key_scales + h * layout.key_scale_bytes
        scale += offset * routines.key_scale
        call(
            routines.key,
            (keys + h * head_dim * 4, block + h * layout.key_head_bytes, offset, shape.block_size,
             0, scale, scale + shape.block_size * routines.key_scale,
             codes.key_levels + h * HEAD_TABLE_BYTES, codes.key_bounds + h * TABLE_SIZE * 4,
             codes.key_weights + h * head_dim * 4, memory),
        )  # fmt: skip
        scale = block + layout.value_scales + h * layout.value_scale_bytes
        scale += offset * routines.value_scale
        call(
            routines.value,
            (values + h * head_dim * 4, block + layout.values + h * layout.value_head_bytes, offset,
             shape.block_size, 1, scale, scale + shape.block_size * routines.value_scale,
             codes.value_levels + h * HEAD_TABLE_BYTES,
             codes.value_bounds + h * TABLE_SIZE * 4, codes.value_weights + h * head_dim * 4,
             memory),
        )  # fmt: skip


@njit(error_model="numpy")
def turn_rows(
    routines: WriteRoutines, rows: int, row_bytes: int, count: int, pages: LayerPages,
    shape: HeadShape, memory: int,
) -> None:  # fmt: skip
    """Turn queries, keys and values of some rows into the basis that codes are in, in place.

    What is taken out of keys goes first. rows: as `write_row` takes them, `row_bytes` apart.
    memory: [count, head_dim] float32.
    """
    num_kv_heads, size, codes = shape.num_kv_heads, shape.head_dim * 4, pages.codes
    turn_queries(routines, rows, row_bytes, count, pages, shape, memory)
    keys = rows + num_kv_heads * shape.group_size * size
    if codes.key_mean != 0:
        _take_out(keys, row_bytes, count, codes.key_mean, num_kv_heads * shape.head_dim)
    for h in range(num_kv_heads):
        matrix = h * matrix_bytes(pages, shape.head_dim)
        if codes.query_turn != 0:
            key = keys + h * size
            call(routines.turn, (key, row_bytes // 4, codes.key_turn + matrix, count, memory))
        if codes.value_turn != 0:
            value = keys + (num_kv_heads + h) * size
            call(routines.turn, (value, row_bytes // 4, codes.value_turn + matrix, count, memory))


@njit(error_model="numpy")
def _take_out(keys: int, row_bytes: int, count: int, mean: int, width: int) -> None:
    """Subtract the mean, [width] float32, from so many rows' keys."""
    for r in range(count):
        key = keys + r * row_bytes
        for i in range(width):
            put_number(key, i, number_at(key, i, False) - number_at(mean, i, False), False)


@njit(error_model="numpy")
def turn_queries(
    routines: WriteRoutines, rows: int, row_bytes: int, count: int, pages: LayerPages,
    shape: HeadShape, memory: int,
) -> None:  # fmt: skip
    """`turn_rows` of the queries alone, with which each row begins."""
    if pages.codes.query_turn == 0:
        return
    size = shape.head_dim * 4
    for h in range(shape.num_kv_heads):
        matrix = pages.codes.query_turn + h * matrix_bytes(pages, shape.head_dim)
        for g in range(shape.group_size):
            query = rows + (h * shape.group_size + g) * size
            call(routines.turn, (query, row_bytes // 4, matrix, count, memory))


def _scale_bytes(code: VectorCode) -> int:
    return SCALE_BYTES[code.scale] if code.scale else 0
