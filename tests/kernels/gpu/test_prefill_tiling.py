"""Plans of prefill attention: every token that a row sees once, in memory that is there."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import AttentionWindow
from pagoda.cache.window import FULL_ATTENTION
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.parts import PREFILL_PARTS
from pagoda.kernels.gpu.prefill_tiling import (
    SPLIT_FROM,
    SPLIT_TOKENS,
    SPLIT_UNIT,
    AttentionKind,
    PrefillTiling,
    tile_prefill,
)

KV_HEADS = [1, 2, 3, 8, 40, 128, 255, 256]

kinds = st.builds(
    lambda group_size, num_kv_heads: AttentionKind(group_size * num_kv_heads, num_kv_heads),
    st.integers(1, 16),
    st.sampled_from(KV_HEADS),
)
sights = st.one_of(
    st.just(FULL_ATTENTION),
    st.builds(AttentionWindow, st.integers(1, 5000)),
    st.builds(AttentionWindow, st.integers(1, 5000), st.integers(1, 700)),
)
steps = st.lists(
    st.tuples(
        st.integers(0, 300), st.one_of(st.integers(0, 900), st.integers(1000, 40_000)), sights
    ),
    min_size=1,
    max_size=8,
)
"""Rows of each sequence, the tokens before them, and what they see."""
Step = list[tuple[int, int, AttentionWindow]]


def tiling_of(kind: AttentionKind, step: Step, wanted: list[int]) -> PrefillTiling[Array]:
    rows, before = np.array([each[:2] for each in step]).T
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    contexts = (rows + before).astype(np.int32)
    windows = None
    if not all(window.is_full for _, _, window in step):
        windows = np.array([(each.window, each.sinks) for _, _, each in step], np.int32)
    return tile_prefill(kind, starts, contexts, np.array(wanted, np.int64), windows)


def tiles_by_row(tiling: PrefillTiling[Array]) -> dict[tuple[int, int], list[list[int]]]:
    """Tiles of the same queries, by sequence and first row, in the order of their tokens."""
    tiles = sorted(tiling.tiles.tolist(), key=lambda tile: (tile[0], tile[1], tile[4]))
    groups = itertools.groupby(tiles, key=lambda tile: (tile[0], tile[1]))
    return {key: list(group) for key, group in groups}


@given(kinds, steps, st.data())
def test_rows_walk_once_over_all_that_they_see(
    kind: AttentionKind, step: Step, data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(st.integers(0, len(step) - 1), unique=True))
    tiling = tiling_of(kind, step, wanted)
    assert (tiling.tiles.dtype, tiling.merges.dtype) == (np.int32, np.int32)
    assert tiling.tiles.shape[1:] == (8,)
    starts = np.cumsum([0, *(rows for rows, _, _ in step)]).tolist()
    covered = []
    for (sequence, row), splits in tiles_by_row(tiling).items():
        _, _, rows, position, begin, _, _, _ = splits[0]
        assert [split[7] for split in splits] == [1, *[0] * (len(splits) - 1)]
        assert all(split[2:4] == [rows, position] for split in splits)
        assert position == step[sequence][1] + row - starts[sequence]
        window = step[sequence][2]
        seen_from = max(window.first_in_window(position), min(window.sinks, position))
        assert begin == seen_from // SPLIT_UNIT * SPLIT_UNIT
        assert all(left[5] == right[4] for left, right in itertools.pairwise(splits))
        assert all(split[4] % SPLIT_UNIT == 0 and split[4] < split[5] for split in splits)
        assert splits[-1][5] == position + rows
        assert 1 <= rows <= kind.query_tokens
        covered += [(sequence, each) for each in range(row, row + rows)]
    assert sorted(covered) == [
        (each, row) for each in sorted(wanted) for row in range(starts[each], starts[each + 1])
    ]


@given(kinds, steps)
def test_parts_of_a_round_lie_apart_and_are_all_merged(kind: AttentionKind, step: Step) -> None:
    tiling = tiling_of(kind, step, list(range(len(step))))
    split = {key: tiles for key, tiles in tiles_by_row(tiling).items() if len(tiles) > 1}
    assert (tiling.tiles[:, 6] >= 0).sum() == sum(len(tiles) for tiles in split.values())
    expected = [[row, tiles[0][2], tiles[0][6], len(tiles)] for (_, row), tiles in split.items()]
    assert sorted(tiling.merges.tolist()) == sorted(expected)
    for tiles in split.values():
        partial = [tile[6] - tiles[0][6] for tile in tiles]
        assert partial == [tiles[0][2] * number for number in range(len(tiles))]
    next_tile = next_merge = 0
    for first_tile, num_tiles, first_merge, num_merges in tiling.rounds:
        assert (first_tile, first_merge) == (next_tile, next_merge)
        next_tile, next_merge = first_tile + num_tiles, first_merge + num_merges
        own = tiling.tiles[first_tile:next_tile]
        assert (np.diff(own[:, 5] - own[:, 4]) <= 0).all()  # the longest first
        partial = own[own[:, 6] >= 0]
        used = [row for tile in partial.tolist() for row in range(tile[6], tile[6] + tile[2])]
        merged = tiling.merges[first_merge:next_merge]
        assert sorted(used) == list(range(len(used)))
        assert len(used) == (merged[:, 1] * merged[:, 3]).sum()
        assert len(used) * kind.num_heads <= PREFILL_PARTS
    assert (next_tile, next_merge) == (len(tiling.tiles), len(tiling.merges))


@given(kinds, steps)
def test_a_sequence_is_cut_the_same_alone_and_in_a_batch(kind: AttentionKind, step: Step) -> None:
    starts = np.cumsum([0, *(rows for rows, _, _ in step)]).tolist()
    together = tiles_by_row(tiling_of(kind, step, list(range(len(step)))))
    alone = {
        (sequence, row + starts[sequence]): [tile[2:6] for tile in tiles]
        for sequence, own in enumerate(step)
        for (_, row), tiles in tiles_by_row(tiling_of(kind, [own], [0])).items()
    }
    assert alone == {key: [tile[2:6] for tile in tiles] for key, tiles in together.items()}


@given(kinds, steps)
def test_splits_are_few_and_long(kind: AttentionKind, step: Step) -> None:
    tiling = tiling_of(kind, step, list(range(len(step))))
    for (sequence, _), tiles in tiles_by_row(tiling).items():
        if len(tiles) > 1:
            assert tiles[-1][5] - tiles[0][4] >= SPLIT_FROM
            assert all(tile[5] - tile[4] >= SPLIT_TOKENS for tile in tiles[:-1])
            assert (tiling.tiles[:, 0] == sequence).sum() <= kind.most_splits


@given(kinds, steps)
def test_a_plan_takes_no_more_bytes_than_was_said(kind: AttentionKind, step: Step) -> None:
    step = [each for each in step if each[0] > 1] or [(2, 5000, FULL_ATTENTION)]
    tiling = tiling_of(kind, step, list(range(len(step))))
    num_tokens = sum(rows for rows, _, _ in step)
    most = kind.most_tiling_bytes(num_tokens, len(step))
    assert tiling.tiles.nbytes + tiling.merges.nbytes <= most


@pytest.mark.parametrize("num_kv_heads", KV_HEADS)
@pytest.mark.parametrize("group_size", range(1, 17))
def test_parts_of_any_tile_fit(group_size: int, num_kv_heads: int) -> None:
    kind = AttentionKind(group_size * num_kv_heads, num_kv_heads)
    assert kind.query_tokens * kind.num_heads * kind.most_splits <= PREFILL_PARTS


def test_a_prompt_whose_end_is_new_fills_a_gpu_and_one_that_is_all_new_does_so_unsplit() -> None:
    kind, full = AttentionKind(32, 8), FULL_ATTENTION
    hit, miss = tiling_of(kind, [(20, 8000, full)], [0]), tiling_of(kind, [(8020, 0, full)], [0])
    assert len(hit.tiles) * kind.num_kv_heads >= 200
    assert (len(hit.merges), len(miss.merges)) == (1, 0)
    assert (miss.tiles[:, 4] == 0).all()


def test_no_sequences_are_no_rounds() -> None:
    tiling = tiling_of(AttentionKind(8, 2), [(3, 2, AttentionWindow(5))], [])
    assert (len(tiling.tiles), len(tiling.merges), tiling.rounds) == (0, 0, ())
