from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from decoders import Pager

from pagoda.execution.batch import Batch
from pagoda.execution.cpu.attention_tiler import AttentionTiler, tile_attention
from pagoda.kernels.cpu.attention import strip_tokens
from pagoda.kernels.cpu.attention_scratch import split_tokens
from pagoda.kernels.cpu.heads import HeadShape

SHAPE = HeadShape(num_kv_heads=2, group_size=12, head_dim=16, block_size=8, value_dim=16)
SPLIT, TILE = split_tokens(8), strip_tokens(12)


def batch_of(steps: list[tuple[int, int]]) -> Batch:
    """Sequences given as (tokens in the cache before, tokens in this step)."""
    pager = Pager(8, 1000)
    sequences = [pager.sequence([0] * (before + count)) for before, count in steps]
    for sequence, (before, _) in zip(sequences, steps, strict=True):
        sequence.num_computed = before
    counts = [count for _, count in steps]
    return pager.batch(list(zip(sequences, counts, strict=True)))


@pytest.mark.parametrize(
    "steps",
    [
        [(0, 1)],
        [(SPLIT - 1, 1), (SPLIT, 1), (6 * SPLIT + 8, 1)],
        [(0, 3 * SPLIT + 4)],
        [(2 * SPLIT + 6, 3), (0, 4), (2 * SPLIT, 5), (2 * SPLIT - 1, 1), (5, 3 * SPLIT - 6)],
    ],
)
@pytest.mark.parametrize("decodes", [False, True])
def test_every_row_meets_every_split_it_sees_exactly_once(
    steps: list[tuple[int, int]], decodes: bool
):
    batch = batch_of(steps)
    tiling = tile_attention(batch, SHAPE, decodes=decodes)
    met: Counter[tuple[int, int, int]] = Counter()
    for sequence, first, count, begin, end, first_head, end_head, _ in tiling.work.tolist():
        assert 1 <= count <= TILE * (4 if decodes else 1)
        rows = tiling.tokens[first : first + count].tolist()
        if count > 1 and end - begin == 1 and first >= batch.num_tokens:
            assert batch.positions[rows].min() >= end * SPLIT - 1, "not all see the whole split"
        else:
            assert batch.query_starts[sequence] <= min(rows)
            assert max(rows) < batch.query_starts[sequence + 1]
        heads = range(first_head, end_head)
        met.update((row, s, head) for row in rows for s in range(begin, end) for head in heads)
    for row, position in enumerate(batch.positions.tolist()):
        for split in range(position // SPLIT + 1):
            assert all(met[row, split, head] == 1 for head in range(2))
    assert set(met.values()) == {1}


def test_tiles_that_decode_are_larger_where_threads_have_enough_of_them():
    batch = batch_of([(0, 9 * TILE), (SPLIT, TILE)])

    def largest(num_threads: int, **decodes: bool) -> int:
        work = tile_attention(batch, SHAPE, num_threads=num_threads, **decodes).work
        return int(work[:, 2].max())

    assert largest(1) == TILE
    assert [largest(threads, decodes=True) for threads in (1, 2)] == [4 * TILE, TILE]


def test_parts_come_first_and_each_belongs_to_one_merge():
    steps = [(0, SPLIT + 2 * TILE), (2 * SPLIT + 6, 3), (5, 1), (2 * SPLIT, 1)]
    batch = batch_of(steps)
    tiling = tile_attention(batch, SHAPE)
    left = {
        (int(tiling.starts[row]) + split, row, split)
        for _, first, count, split, *_ in tiling.work[: tiling.num_parts].tolist()
        for row in tiling.tokens[first : first + count].tolist()
    }
    taken = {
        (start + split, row, split)
        for row, start, count in tiling.merges.tolist()
        for split in range(count)
    }
    assert left == taken
    assert sorted(part for part, _, _ in taken) == list(range(12))
    assert tiling.parts.shape == (12, 2 * 12 * (16 + 2))
    assert tiling.most_rows == TILE * 12


def test_sequences_with_the_same_blocks_take_a_split_together():
    batch = batch_of([(2 * SPLIT + 8, 1) for _ in range(TILE + 2)] + [(3 * SPLIT, 2)])
    tables = batch.groups[0].block_tables
    per_split = SPLIT // 8
    tables[1 : TILE + 1, : 2 * per_split] = tables[0, : 2 * per_split]
    tables[TILE, 2 * per_split - 1] = tables[TILE + 1, 0]  # has but the first split in common
    tables[TILE + 2, :per_split] = tables[0, :per_split]
    tiling = tile_attention(batch, SHAPE)
    together = [
        (split, tiling.tokens[first : first + count].tolist())
        for _, first, count, split, _, head, *_ in tiling.work[: tiling.num_parts].tolist()
        if first >= batch.num_tokens and head == 0
    ]
    whole = list(range(TILE))
    # The last sequence has two tokens.
    assert together == [(0, whole), (0, [TILE, TILE + 2, TILE + 3]), (1, whole)]


def test_a_split_that_is_still_written_to_is_not_taken_together():
    batch = batch_of([(SPLIT + 8, 1), (SPLIT + 8, 1)])
    batch.groups[0].block_tables[1] = batch.groups[0].block_tables[0]
    tiling = tile_attention(batch, SHAPE)
    together = [item for item in tiling.work.tolist() if item[1] >= batch.num_tokens]
    assert {item[3] for item in together} == {0}


def test_a_lone_sequence_is_divided_and_the_longest_tiles_come_first():
    assert tile_attention(batch_of([(10 * SPLIT - 1, 1)]), SHAPE).num_parts == 10
    tiling = tile_attention(batch_of([(0, SPLIT + 2 * TILE)]), SHAPE)
    assert tiling.num_parts == 0
    assert tiling.work[0, 1] == SPLIT + TILE


@pytest.mark.parametrize(
    ("steps", "in_turn"),
    [
        ([(7, 1), (6 * SPLIT, 1)], False),
        ([(0, SPLIT)], False),
        ([(6 * SPLIT, 1), (0, SPLIT + 2 * TILE)], True),
    ],
)
def test_threads_take_items_in_turn_where_some_are_long(
    steps: list[tuple[int, int]], in_turn: bool
):
    tiling = tile_attention(batch_of(steps), SHAPE)
    assert tiling.in_turn == in_turn
    assert tiling.addresses().in_turn == int(in_turn)


def test_few_rows_are_worked_on_for_all_heads_unless_a_thread_would_be_idle():
    alone = tile_attention(batch_of([(7, 1)]), SHAPE).work
    assert alone[:, 5:7].tolist() == [[0, 1], [1, 2]]
    together = tile_attention(batch_of([(7, 1), (9, 1)]), SHAPE).work
    assert together[:, 5:7].tolist() == [[0, 2], [0, 2]]
    many = tile_attention(batch_of([(0, 4), (0, 4)]), SHAPE).work
    assert many[:, 5:7].tolist() == [[0, 1], [1, 2]] * 2


def test_a_plan_holds_while_the_same_sequences_take_a_token_each():
    tiler = AttentionTiler(SHAPE)
    first = tiler.tile(batch_of([(2 * SPLIT + 8, 1), (40, 1)]))
    batch = batch_of([(2 * SPLIT + 9, 1), (41, 1)])
    again = tiler.tile(batch)
    assert again.work is first.work
    assert again.positions is batch.positions
    assert again.block_tables is batch.groups[0].block_tables
    for changed in (
        [(3 * SPLIT, 1), (42, 1)],
        [(2 * SPLIT + 10, 1)],
        [(2 * SPLIT + 9, 2), (41, 1)],
    ):
        batch = batch_of(changed)
        expected = tile_attention(batch, SHAPE)
        found = tiler.tile(batch)
        assert np.array_equal(found.work, expected.work)
        assert np.array_equal(found.merges, expected.merges)


def test_a_shared_split_is_looked_at_again_in_every_step():
    tiler = AttentionTiler(SHAPE)
    batch = batch_of([(SPLIT + 8, 1), (SPLIT + 8, 1)])
    batch.groups[0].block_tables[1] = batch.groups[0].block_tables[0]
    assert len(tiler.tile(batch).tokens) == 4
    batch = batch_of([(SPLIT + 9, 1), (SPLIT + 9, 1)])
    batch.groups[0].block_tables[1, 0] = batch.groups[0].block_tables[0, 0]
    assert len(tiler.tile(batch).tokens) == 2


def test_sharing_may_end_where_the_tables_end():
    batch = batch_of([(2 * SPLIT - 1, 1), (2 * SPLIT - 1, 1)])
    batch.groups[0].block_tables[1, :-1] = batch.groups[0].block_tables[0, :-1]
    tiling = tile_attention(batch, SHAPE)
    assert len(tiling.tokens) == 4  # the first split together, the second apart
    assert tiling.num_parts == 2 * 1 + 2


def test_a_plan_of_several_tokens_is_not_used_again():
    tiler = AttentionTiler(SHAPE)
    first = tiler.tile(batch_of([(SPLIT - 2, 2), (40, 1)]))
    again = tiler.tile(batch_of([(SPLIT - 2, 2), (40, 1)]))
    assert again.work is not first.work
