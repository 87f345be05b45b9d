"""Queries as whole numbers, and their products with levels of keys, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from coded_cases import HEADS, NUM_BLOCKS, ROWS, Case, call

from pagoda.kernels.array import Array
from pagoda.kernels.cpu import page_product
from pagoda.kernels.cpu.attention_rows import soften_routine
from pagoda.kernels.cpu.softmax import WIDTH
from pagoda.kernels.cpu.tile import blocks_at_once
from pagoda.kernels.cpu.unpack import unpack_keys_routine
from pagoda.kernels.cpu.whole_form import (
    MOST_NARROW,
    MOST_WIDE,
    RAISED_BY,
    TAKES_WHOLE,
    WholeForm,
    meets_whole,
)
from pagoda.kernels.cpu.whole_queries import round_queries_routine
from pagoda.kernels.vector_code import VectorCode

takes_whole = pytest.mark.skipif(
    not TAKES_WHOLE, reason="this CPU does not look up and multiply levels as bytes"
)
FORMS = [WholeForm(64, 16), WholeForm(64, 0), WholeForm(128, 32), WholeForm(80, 0)]


def numbers_of(form: WholeForm, rows: Array) -> Array:
    """[..., head_dim] int64 in order, from rows of groups without their starts, int32."""
    wide = np.ascontiguousarray(rows[..., : form.num_pairs]).view(np.int16)
    fours = np.ascontiguousarray(rows[..., form.num_pairs : form.num_groups]).view(np.int8)
    narrow = fours.reshape(*rows.shape[:-1], -1, 4)[..., [0, 2, 1, 3]]
    return np.concatenate([wide, narrow.reshape(*rows.shape[:-1], -1)], -1).astype(np.int64)


def rounded(form: WholeForm, queries: Array, tokens: Array, group_size: int) -> tuple[Array, ...]:
    """Rows of all heads, their steps and sums; queries: [rows, heads, head_dim] float32."""
    num_rows = len(tokens) * queries.shape[1]
    rows = np.zeros((num_rows, form.num_groups + 1), np.int32)
    steps, sums = np.full((2, num_rows), 7, np.float32)
    call(
        round_queries_routine(*form).address, rows.ctypes.data, steps.ctypes.data,
        sums.ctypes.data, queries.ctypes.data, queries.strides[0], tokens.ctypes.data, len(tokens),
        0, queries.shape[1] // group_size, group_size,
    )  # fmt: skip
    return rows, steps, sums


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_queries_are_rounded_to_the_smallest_steps_that_hold_them(form: WholeForm) -> None:
    rng = np.random.default_rng(form.head_dim)
    queries = rng.normal(size=(5, 6, form.head_dim)).astype(np.float32)
    queries[..., : form.wide] *= 40
    queries[1, 2] *= 1e-3
    queries[2, :, : form.wide] *= 1e4  # now the front asks for larger steps
    tokens = np.array([4, 1, 2])
    rows, steps, sums = rounded(form, queries, tokens, 3)
    in_order = queries[tokens].reshape(3, 2, 3, -1).swapaxes(0, 1).reshape(18, -1)
    whole = numbers_of(form, rows)
    limits = np.where(np.arange(form.head_dim) < form.wide, MOST_WIDE, MOST_NARROW)
    assert (np.abs(whole) <= limits).all()
    assert (np.abs(whole) == limits).any(-1).all()
    error = np.abs(whole * steps[:, None].astype(np.float64) - in_order)
    assert (error <= steps[:, None] / 2 * (1 + 1e-4)).all()
    assert np.array_equal(rows[:, -1], -RAISED_BY * whole[:, form.wide :].sum(-1))
    assert np.array_equal(sums, whole.sum(-1).astype(np.float32))


def test_what_lies_halfway_goes_to_even_numbers() -> None:
    queries = np.zeros((1, 1, 64), np.float32)
    queries[..., 20:26] = MOST_NARROW, 0.5, 1.5, 2.5, -0.5, -1.5
    rows, steps, sums = rounded(WholeForm(64, 0), queries, np.array([0]), 1)
    assert numbers_of(WholeForm(64, 0), rows)[0, 20:26].tolist() == [MOST_NARROW, 0, 2, 2, 0, -2]
    assert (steps[0], sums[0]) == (1, MOST_NARROW + 2)


def test_a_query_that_is_no_number_scores_none() -> None:
    queries = np.zeros((1, 2, 64), np.float32)
    queries[0, 0, 40], queries[0, 1, 3] = np.nan, np.inf
    _, steps, sums = rounded(FORMS[0], queries, np.array([0]), 2)
    with np.errstate(invalid="ignore"):
        assert np.isnan(steps[0])
        assert np.isinf(steps[1])
        assert np.isnan(steps[1] * (sums[1] - sums[1]))


@pytest.mark.parametrize("size", [0, 1e-42, 1e-30, 1e-12])
def test_what_a_row_does_not_see_weighs_nothing_however_small_its_query(size: float) -> None:
    queries = np.full((1, 1, 64), size, np.float32)
    rows, steps, sums = rounded(FORMS[0], queries, np.array([0]), 1)
    seen, hidden = 30, WIDTH - 30
    scores = numbers_of(FORMS[0], rows).sum(-1, keepdims=True) * np.ones((1, WIDTH))
    scores = (scores * np.where(np.arange(WIDTH) < seen, 1, 5)).astype(np.float32)
    weights = np.full(WIDTH, np.nan, np.float32)
    highest, mass, offsets = np.zeros((3, 1), np.float32)
    positions, tokens = np.array([seen - 1], np.int32), np.array([0])
    scale = np.ones(1, np.float32)
    call(
        soften_routine(False).address, scores.ctypes.data, weights.ctypes.data, WIDTH, WIDTH,
        positions.ctypes.data, tokens.ctypes.data, 1, 1, 1, 0, 0, WIDTH, WIDTH, scale.ctypes.data,
        0, highest.ctypes.data, mass.ctypes.data, 0, sums.ctypes.data, steps.ctypes.data,
        offsets.ctypes.data,
    )  # fmt: skip
    assert weights.tolist() == [1] * seen + [0] * hidden
    assert mass[0] == seen


@takes_whole
@pytest.mark.parametrize(
    ("name", "wide", "block_size"),
    [("paths", 16, 16), ("paths", 0, 64), ("paths", 16, 160), ("mixed", 32, 48), ("fours", 0, 16),
     ("fours", 16, 32), ("gap", 16, 16)],
)  # fmt: skip
def test_scores_are_exact_from_codes_and_from_levels(
    name: str, wide: int, block_size: int
) -> None:  # fmt: skip
    """Runs of like chunks that are cut where wide numbers end, and chunks without bits, too."""
    case = Case(name, True, block_size)
    form, tokens = WholeForm(case.code.head_size, wide), NUM_BLOCKS * block_size
    queries = case.rng.normal(size=(ROWS, HEADS, form.head_dim)).astype(np.float32)
    rows, _, _ = rounded(form, queries, np.arange(ROWS), 1)
    expected = np.einsum(
        "hrd,thd->hrt", numbers_of(form, rows).reshape(HEADS, ROWS, -1), case.levels().astype(int)
    )
    keys = np.ascontiguousarray(case.bytes.swapaxes(2, 3))  # bytes of a key, then tokens
    unpack = unpack_keys_routine(*case.shape, case.code.text, wide)
    levels = np.empty((tokens, form.num_groups), np.int32)
    numbers, at_once = np.arange(NUM_BLOCKS, dtype=np.int32), blocks_at_once(block_size)
    for head in range(HEADS):
        table = case.head_tables[head].ctypes.data
        call(
            unpack.address, levels.ctypes.data, keys[0, head].ctypes.data, keys[0].nbytes,
            case.table.ctypes.data, 0, NUM_BLOCKS, table,
        )  # fmt: skip
        coded = case.code.text, keys[0, head].ctypes.data, keys[0].nbytes, case.table.ctypes.data
        plain = "", levels.ctypes.data, levels.nbytes // NUM_BLOCKS, numbers.ctypes.data
        for text, place, stride, blocks in (coded, plain):
            routine = page_product._score_routine(*case.shape, text, wide)
            scores = np.zeros((ROWS, tokens + at_once * block_size), np.float32)
            for block in range(0, NUM_BLOCKS, at_once):
                call(
                    routine.address, scores[:, block * block_size :].ctypes.data, scores.shape[1],
                    rows[head * ROWS].ctypes.data, rows.shape[1], place, place, stride, blocks,
                    block, block, NUM_BLOCKS, ROWS, 1, table,
                )  # fmt: skip
            assert np.array_equal(scores[:, :tokens], expected[head].astype(np.float32))


def test_levels_in_blocks_of_whole_vectors_meet_whole_queries() -> None:
    paths = VectorCode("levels", (6, 5, 4, 3), "ufloat8", has_paths=True)
    fours, bytes_of = VectorCode("levels", (4,) * 4, "float16"), VectorCode("int8", (8,) * 4)
    cases = (paths, 16), (fours, 64), (bytes_of, 16), (paths, 24), (fours, 8)
    found = [meets_whole(code, block_size) for code, block_size in cases]
    assert found == [TAKES_WHOLE, TAKES_WHOLE, False, False, False]
