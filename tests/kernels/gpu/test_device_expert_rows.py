from __future__ import annotations

import numpy as np
from expert_rows_of import SPOILED_TILE, choose, sorted_rows
from hypothesis import given
from hypothesis import strategies as st

from pagoda.kernels.array import Array
from pagoda.kernels.gpu.expert_tiles import FEW_ROWS, MANY_ROWS, most_tiles, tile_bound, tile_rows


def assert_sorted(chosen: Array, num_experts: int) -> None:
    rows = sorted_rows(chosen, num_experts)
    pairs = chosen.reshape(-1)
    assert rows.order.tolist() == np.argsort(pairs, kind="stable").tolist()
    counts = np.bincount(pairs, minlength=num_experts)
    assert rows.counts.tolist() == counts.tolist()
    tiles, start = [], 0
    for expert, count in enumerate(counts.tolist()):
        firsts = range(start, start + count, rows.height)
        start += count
        tiles += [[expert, first, min(first + rows.height, start)] for first in firsts]
    own = rows.tiles[: rows.num_tiles].tolist()
    assert own[: len(tiles)] == tiles
    assert all(first == end for _, first, end in own[len(tiles) :])
    assert all(tile == SPOILED_TILE for tile in rows.tiles[rows.num_tiles :].tolist())


@given(st.integers(0, 40), st.integers(1, 20), st.data())
def test_pairs_are_sorted_by_expert_and_cut_into_tiles(
    num_rows: int, num_experts: int, data: st.DataObject
) -> None:
    num_used = data.draw(st.integers(1, num_experts))
    assert_sorted(choose(np.random.default_rng(7), num_rows, num_experts, num_used), num_experts)


def test_there_may_be_more_pairs_than_a_program_takes_at_once() -> None:
    assert_sorted(choose(np.random.default_rng(0), 1100, 3, 2), 3)
    assert_sorted(np.zeros((17_000, 1), np.int32), 2)  # and tiles


@given(st.integers(1, 600), st.integers(1, 12), st.data())
def test_the_bound_of_tiles_is_reached_and_never_passed(
    num_pairs: int, num_experts: int, data: st.DataObject
) -> None:
    height = tile_rows(num_pairs, num_experts)
    bound = tile_bound(num_pairs, num_experts)
    counts = np.bincount(
        data.draw(st.lists(st.integers(0, num_experts - 1), min_size=num_pairs, max_size=num_pairs))
        if num_pairs < 30
        else np.random.default_rng(num_pairs).integers(0, num_experts, num_pairs)
    )
    assert -(-counts // height).sum() <= bound
    one_each = min(num_pairs, num_experts) - 1  # all others in one expert
    assert one_each + -(-(num_pairs - one_each) // height) == bound
    assert bound <= most_tiles(num_pairs, num_experts) <= most_tiles(num_pairs + 1, num_experts)


def test_tiles_are_small_where_experts_have_few_rows() -> None:
    assert [tile_rows(count, 8) for count in (1, 256, 257)] == [FEW_ROWS, FEW_ROWS, MANY_ROWS]
