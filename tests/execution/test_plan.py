from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from decoders import Pager

from pagoda.execution.batch import Batch
from pagoda.execution.plan import plan_attention

SPLIT = 32
TILE = 4


def batch_of(steps: list[tuple[int, int]]) -> Batch:
    """Sequences given as (tokens in the cache before, tokens in this step)."""
    pager = Pager(8, 400)
    sequences = [pager.sequence([0] * (before + count)) for before, count in steps]
    for sequence, (before, _) in zip(sequences, steps, strict=True):
        sequence.num_computed = before
    counts = [count for _, count in steps]
    return pager.batch(list(zip(sequences, counts, strict=True)))


@pytest.mark.parametrize(
    "steps",
    [
        [(0, 1)],
        [(31, 1), (32, 1), (200, 1)],
        [(0, 100)],
        [(70, 3), (0, 4), (64, 5), (63, 1), (5, 90)],
    ],
)
def test_every_row_meets_every_split_it_sees_exactly_once(steps: list[tuple[int, int]]):
    batch = batch_of(steps)
    plan = plan_attention(batch, SPLIT, TILE)
    met: Counter[tuple[int, int]] = Counter()
    for sequence, first, count, begin, end in plan.work.tolist():
        assert 1 <= count <= TILE
        assert batch.query_starts[sequence] <= first
        assert first + count <= batch.query_starts[sequence + 1]
        met.update((row, s) for row in range(first, first + count) for s in range(begin, end))
    for row, position in enumerate(batch.positions.tolist()):
        assert all(met[row, split] == 1 for split in range(position // SPLIT + 1))
    assert set(met.values()) == {1}


def test_parts_come_first_and_each_belongs_to_one_merge():
    plan = plan_attention(batch_of([(0, 40), (70, 3), (5, 1), (64, 1)]), SPLIT, TILE)
    parts = plan.work[: plan.num_parts]
    assert np.array_equal(parts[:, 4] - parts[:, 3], np.ones(plan.num_parts))
    merged = []
    for first_row, num_rows, begin, end in plan.merges.tolist():
        assert np.array_equal(parts[begin:end, 1], [first_row] * (end - begin))
        assert np.array_equal(parts[begin:end, 2], [num_rows] * (end - begin))
        assert np.array_equal(parts[begin:end, 3], np.arange(end - begin))
        merged += range(begin, end)
    assert merged == list(range(plan.num_parts))
    assert plan.num_parts == 6
    assert plan.part_rows == 3


def test_a_lone_sequence_is_divided_and_the_longest_tiles_come_first():
    assert plan_attention(batch_of([(319, 1)]), SPLIT, TILE).num_parts == 10
    plan = plan_attention(batch_of([(0, 40)]), SPLIT, TILE)
    assert plan.num_parts == 0
    assert plan.work[0, 1] == 36
