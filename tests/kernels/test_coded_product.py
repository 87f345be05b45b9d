"""Products with coded keys and values, and their scales, against plain sums over unpacked codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from coded_blocks import to_planes
from coded_cases import HEADS, NUM_BLOCKS, ROWS, Case, call

from pagoda.kernels.cpu import page_product
from pagoda.kernels.cpu.code_scales import gather_scales_routine, sum_rows_routine
from pagoda.kernels.cpu.level_tables import byte_tables, magnitudes
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.page_product import HeadRoutines, head_routines
from pagoda.kernels.cpu.softmax import KEY_SCALE, SCALE_ROWS, VALUE_SCALE
from pagoda.kernels.cpu.tile import blocks_at_once
from pagoda.kernels.vector_code import Numbers

NEXT_KEYS = np.zeros(8, np.int64)
"""Nothing is read there: memory is asked for it."""


def routines_of(case: Case) -> HeadRoutines:
    """All that attention calls; most tests want one of them, and compile no other."""
    return head_routines(PageForm(*case.shape, case.code, case.code))


CASES = pytest.mark.parametrize(
    ("name", "paired", "block_size"),
    [
        ("mixed", False, 16), ("mixed", True, 16),
        ("paths", False, 5), ("paths", False, 6), ("paths", False, 16), ("paths", True, 16),
        ("paths", True, 24),
        ("fours", False, 16), ("fours", False, 6), ("fours", True, 16),
        ("bytes", False, 16), ("bytes", True, 24), ("bytes", True, 64),
        ("floats", False, 6), ("floats", True, 16),
        ("gap", False, 6), ("gap", True, 24), ("gap", True, 32),
    ],
)  # fmt: skip
"""Every code is read as float32, and in pairs. What decides how: whether a block's tokens fill
vectors of sixteen, which look up sixty-four codes at a time where they come in pairs; and how many
blocks are scored together."""


@CASES
def test_scores_are_products_with_the_levels(name: str, paired: bool, block_size: int) -> None:
    case = Case(name, paired, block_size)
    size, tokens = case.code.head_size, NUM_BLOCKS * block_size
    x, seen = case.stored(case.rng.normal(size=(HEADS, ROWS, size)))
    keys = np.ascontiguousarray(case.bytes.swapaxes(2, 3))  # bytes of a key, then tokens
    out = np.zeros((HEADS, ROWS, tokens), np.float32)
    at_once = blocks_at_once(block_size)
    routine = page_product._score_routine(*case.shape, case.code.text)
    for first in range(0, NUM_BLOCKS, at_once):
        last = min(first + at_once, NUM_BLOCKS)
        part = np.zeros((HEADS, ROWS, tokens + at_once * block_size), np.float32)
        call(
            routine.address, part.ctypes.data, part.shape[2], x.ctypes.data,
            x.strides[1] // 4, keys.ctypes.data, keys.ctypes.data, keys[0].nbytes,
            case.table.ctypes.data, first, first, last, ROWS, HEADS, case.head_tables.ctypes.data,
        )  # fmt: skip
        width = (last - first) * block_size
        out[..., first * block_size : last * block_size] = part[..., :width]
    expected = np.einsum("hrd,thd->hrt", seen.astype(np.float64), case.levels())
    assert out == pytest.approx(expected, rel=1e-4, abs=1e-4 * np.abs(expected).max())


@CASES
def test_outputs_are_sums_of_the_levels(name: str, paired: bool, block_size: int) -> None:
    case = Case(name, paired, block_size)
    size, tokens = case.code.head_size, NUM_BLOCKS * block_size
    begin, end = 3, tokens - 3
    weights = case.rng.uniform(size=(HEADS, ROWS, tokens))
    weights[..., :begin], weights[..., end:] = 0, 0
    values = to_planes(case.code, case.bytes)
    x, seen = case.stored(weights)
    out = np.full((HEADS, ROWS, size), np.nan, np.float32)
    routine = page_product._weigh_routine(*case.shape, case.code.text)
    call(
        routine.address, out.ctypes.data, size, x.ctypes.data, x.strides[1] // 4,
        values.ctypes.data, values[0].nbytes, case.table.ctypes.data, 0, begin, end,
        NEXT_KEYS.ctypes.data, ROWS, HEADS, case.head_tables.ctypes.data,
    )  # fmt: skip
    expected = np.einsum("hrt,thd->hrd", seen.astype(np.float64)[..., :end], case.levels()[:end])
    assert out == pytest.approx(expected, rel=1e-4, abs=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("block_size", [16, 6])
@pytest.mark.parametrize("name", ["fours", "bytes", "mixed"])
def test_scales_are_gathered_token_by_token(name: str, block_size: int) -> None:
    case = Case(name, False, block_size)
    tokens, code, parts = NUM_BLOCKS * block_size, case.code, 1 + case.code.has_offset
    shape = (NUM_BLOCKS, 2, HEADS, parts, block_size)
    kept = case.rng.normal(size=shape).astype(code.scale)
    out = np.full((HEADS, SCALE_ROWS, tokens), np.nan, np.float32)
    first, last = 1, NUM_BLOCKS - 1
    routine = gather_scales_routine(block_size, code.text, code.text)
    call(
        routine.address, out[..., block_size:].ctypes.data, tokens,
        kept[0, 0].ctypes.data, kept[0, 1].ctypes.data, kept[0, 0, 0].nbytes,
        kept[0, 0, 0].nbytes, kept[0].nbytes, case.table.ctypes.data, first, last, HEADS,
    )  # fmt: skip
    by_token = kept[case.table].transpose(2, 1, 3, 0, 4).reshape(HEADS, 2, parts, tokens)
    inside = slice(first * block_size, last * block_size)
    for side, row in ((0, KEY_SCALE), (1, VALUE_SCALE)):
        found = out[:, row : row + parts]
        assert np.array_equal(found[..., inside], by_token[:, side, ..., inside])
        assert np.isnan(found[..., : inside.start]).all()
        assert np.isnan(found[..., inside.stop :]).all()


@pytest.mark.parametrize("paired", [False, True])
def test_queries_are_summed_where_keys_have_offsets(paired: bool) -> None:
    case = Case("fours", paired, 16)
    x, seen = case.stored(case.rng.normal(size=(HEADS * ROWS, case.code.head_size)))
    sums = np.zeros(len(x), np.float32)
    routine = sum_rows_routine(paired, case.code.head_size)
    call(routine.address, sums.ctypes.data, x.ctypes.data, len(x))
    assert sums == pytest.approx(seen.astype(np.float64).sum(-1), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("numbers", ["e4m3", "e5m2"])
def test_tables_of_float8_are_those_of_pytorch(numbers: Numbers) -> None:
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[numbers]
    codes = torch.arange(128, dtype=torch.uint8).view(dtype)
    expected = codes.float().nan_to_num(0, 0, 0).numpy()
    low, high = byte_tables(magnitudes(numbers))
    found = (low.astype(np.uint32) << 16) | (high.astype(np.uint32) << 24)
    assert np.array_equal(found.view(np.float32), expected)


@pytest.mark.parametrize(
    ("name", "paired", "block_size"),
    [
        ("fours", False, 6), ("fours", True, 16), ("bytes", False, 16), ("bytes", True, 64),
        ("gap", False, 6), ("gap", True, 24), ("paths", False, 6), ("paths", True, 16),
    ],
)  # fmt: skip
def test_unpacked_codes_give_the_same_products_to_the_last_bit(
    name: str, paired: bool, block_size: int
) -> None:
    case = Case(name, paired, block_size)
    routines, size, tokens = routines_of(case), case.code.head_size, NUM_BLOCKS * block_size
    item, numbers = 2 if paired else 4, np.arange(NUM_BLOCKS, dtype=np.int32)
    x, _ = case.stored(case.rng.normal(size=(HEADS, ROWS, size)))
    begin, end = 2 * block_size + 1, tokens - 3
    first, moved = begin // block_size, begin // block_size * block_size
    chances = case.rng.uniform(size=(HEADS, ROWS, tokens))
    chances[..., :begin], chances[..., end:] = 0, 0
    weights, _ = case.stored(chances)
    keys, values = np.ascontiguousarray(case.bytes.swapaxes(2, 3)), to_planes(case.code, case.bytes)
    unpacked = np.empty(tokens * size * item, np.uint8)
    at_once = routines.score_blocks
    for head in range(HEADS):
        levels = case.head_tables[head].ctypes.data
        places = keys[0, head].ctypes.data, values[0, head].ctypes.data
        strides = keys[0].nbytes, values[0].nbytes
        found = []
        for is_plain in (False, True):
            if is_plain:
                call(
                    routines.unpack_keys, unpacked.ctypes.data, places[0], strides[0],
                    case.table.ctypes.data, 0, NUM_BLOCKS, levels,
                )  # fmt: skip
            routine = routines.score_unpacked if is_plain else routines.score
            place = unpacked.ctypes.data if is_plain else places[0]
            stride = block_size * size * item if is_plain else strides[0]
            table = (numbers if is_plain else case.table).ctypes.data
            scores = np.zeros((ROWS, tokens + at_once * block_size), np.float32)
            for block in range(0, NUM_BLOCKS, at_once):
                call(
                    routine, scores[:, block * block_size :].ctypes.data, scores.shape[1],
                    x[head].ctypes.data, x.strides[1] // 4, place, place, stride, table, block,
                    block, NUM_BLOCKS, ROWS, 1, levels,
                )  # fmt: skip
            if is_plain:
                call(
                    routines.unpack_values, unpacked.ctypes.data, places[1], strides[1],
                    case.table.ctypes.data, first, NUM_BLOCKS, levels,
                )  # fmt: skip
            routine = routines.weigh_unpacked if is_plain else routines.weigh
            place = unpacked.ctypes.data if is_plain else places[1]
            stride = stride if is_plain else strides[1]
            out, back = np.zeros((ROWS, size), np.float32), moved if is_plain else 0
            call(
                routine, out.ctypes.data, size, weights[head].ctypes.data,
                weights.strides[1] // 4, place, stride, table, -back, begin - back, end - back,
                NEXT_KEYS.ctypes.data, ROWS, 1, levels,
            )  # fmt: skip
            found.append((scores[:, :tokens].copy(), out))
        for coded, plain in zip(*found, strict=True):
            assert coded.any()
            assert np.array_equal(coded, plain)
