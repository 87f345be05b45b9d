from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from decoders import Pager

from pagoda.execution.batch import Batch
from pagoda.execution.plan import plan_attention
from pagoda.kernels.cpu.attention import split_tokens, tile_tokens
from pagoda.kernels.cpu.heads import HeadShape

SHAPE = HeadShape(num_kv_heads=2, group_size=12, head_dim=16, block_size=8)
SPLIT, TILE = split_tokens(8), tile_tokens(12)


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
def test_every_row_meets_every_split_it_sees_exactly_once(steps: list[tuple[int, int]]):
    batch = batch_of(steps)
    plan = plan_attention(batch, SHAPE)
    met: Counter[tuple[int, int, int]] = Counter()
    for sequence, first, count, begin, end, first_head, end_head in plan.work.tolist():
        assert 1 <= count <= TILE
        assert batch.query_starts[sequence] <= first
        assert first + count <= batch.query_starts[sequence + 1]
        rows, heads = range(first, first + count), range(first_head, end_head)
        met.update((row, s, head) for row in rows for s in range(begin, end) for head in heads)
    for row, position in enumerate(batch.positions.tolist()):
        for split in range(position // SPLIT + 1):
            assert all(met[row, split, head] == 1 for head in range(2))
    assert set(met.values()) == {1}


def test_parts_come_first_and_each_belongs_to_one_merge():
    steps = [(0, SPLIT + 8), (2 * SPLIT + 6, 3), (5, 1), (2 * SPLIT, 1)]
    plan = plan_attention(batch_of(steps), SHAPE)
    num_parts = len(plan.parts)
    parts = plan.work[:num_parts]
    assert np.array_equal(parts[:, 4] - parts[:, 3], np.ones(num_parts))
    assert np.array_equal(parts[:, 5:], np.tile((0, 2), (num_parts, 1)))
    merged = []
    for first_row, num_rows, begin, end in plan.merges.tolist():
        assert np.array_equal(parts[begin:end, 1], [first_row] * (end - begin))
        assert np.array_equal(parts[begin:end, 2], [num_rows] * (end - begin))
        assert np.array_equal(parts[begin:end, 3], np.arange(end - begin))
        merged += range(begin, end)
    assert merged == list(range(num_parts))
    assert plan.parts.shape == (6, 3 * 2 * 12 * (16 + 2))
    assert plan.most_rows == 3 * 2 * 12


def test_a_lone_sequence_is_divided_and_the_longest_tiles_come_first():
    assert len(plan_attention(batch_of([(10 * SPLIT - 1, 1)]), SHAPE).parts) == 10
    plan = plan_attention(batch_of([(0, SPLIT + 8)]), SHAPE)
    assert len(plan.parts) == 0
    assert plan.work[0, 1] == SPLIT + 4


def test_few_rows_are_worked_on_for_all_heads_unless_a_thread_would_be_idle():
    alone = plan_attention(batch_of([(7, 1)]), SHAPE).work
    assert alone[:, 5:].tolist() == [[0, 1], [1, 2]]
    together = plan_attention(batch_of([(7, 1), (9, 1)]), SHAPE).work
    assert together[:, 5:].tolist() == [[0, 2], [0, 2]]
    many = plan_attention(batch_of([(0, 4), (0, 4)]), SHAPE).work
    assert many[:, 5:].tolist() == [[0, 1], [1, 2]] * 2
