"""The arrays of a step."""

import numpy as np
import pytest

from pagoda.cache import BlockCopy
from pagoda.cache.window import FULL_ATTENTION
from pagoda.engine.runner import PaddedTables, prepare
from pagoda.scheduling import ScheduledSequence, StepPlan


def scheduled(number: int, start: int, tokens: list[int], blocks: list[int], rows: int):
    block_ids = np.array(blocks, dtype=np.int32)
    stop = start + len(tokens)
    windows = (FULL_ATTENTION,)
    return ScheduledSequence(
        number, 0, start, stop, tuple(tokens), block_ids, windows, rows, rows > 0
    )


def table(*block_ids: int):
    return np.array(block_ids, dtype=np.int32)


def test_padded_tables_follow_their_tables() -> None:
    padded = PaddedTables()
    first, second = table(3, 1), table(7)
    before = padded.of([first, second])
    assert before.tolist() == [[3, 1], [7, 0]]
    assert padded.of([first, second]) is before
    assert padded.of([first, table(8, 9)]).tolist() == [[3, 1], [8, 9]]
    assert padded.of([first, second]).tolist() == [[3, 1], [7, 0]]
    assert padded.of([second, first]).tolist() == [[7, 0], [3, 1]]
    assert padded.of([second]).tolist() == [[7]]
    assert padded.of([second, table(1, 2, 3)]).tolist() == [[7, 0, 0], [1, 2, 3]]
    assert padded.of([]).shape == (0, 0)


def test_a_plan_becomes_flat_arrays() -> None:
    plan = StepPlan(
        sequences=(
            scheduled(0, 5, [50], [3, 1], 1),
            scheduled(1, 2, [60, 61, 62, 63], [7, 0], 0),
            scheduled(2, 0, [70, 71], [4], 2),
        ),
        copies=(BlockCopy(9, 1), BlockCopy(1, 8)),
        block_size=4,
    )
    batch = prepare(plan, PaddedTables().of([one.block_ids for one in plan.sequences]))
    assert batch.token_ids.tolist() == [50, 60, 61, 62, 63, 70, 71]
    assert batch.positions.tolist() == [5, 2, 3, 4, 5, 0, 1]
    assert batch.groups[0].slot_mapping.tolist() == [5, 30, 31, 0, 1, 16, 17]
    assert batch.query_starts.tolist() == [0, 1, 5, 7]
    assert batch.context_lens.tolist() == [6, 6, 2]
    assert batch.groups[0].block_tables.tolist() == [[3, 1], [7, 0], [4, 0]]
    assert batch.logit_rows.tolist() == [0, 5, 6]
    assert (batch.copy_sources.tolist(), batch.copy_targets.tolist()) == ([9, 1], [1, 8])
    assert batch.num_tokens == 7
    assert (batch.drawn.rows.tolist(), batch.drawn.places.tolist()) == ([], [])


def test_drawn_tokens_are_asked_for_by_their_places() -> None:
    """Those of the second and the fourth sequence, which drew third and first in the last step."""
    plan = StepPlan(
        sequences=(
            scheduled(10, 5, [50], [3, 1], 1),
            scheduled(11, 5, [], [7, 0], 1)._replace(stop=6, num_logit_rows=1, samples=True),
            scheduled(12, 0, [70, 71], [4], 0),
            scheduled(13, 2, [], [5], 1)._replace(stop=3, num_logit_rows=1, samples=True),
        ),
        copies=(),
        block_size=4,
    )
    tables = PaddedTables().of([one.block_ids for one in plan.sequences])
    batch = prepare(plan, tables, drawn_last=(13, 10, 11))
    assert batch.token_ids.tolist() == [50, 0, 70, 71, 0]
    assert batch.positions.tolist() == [5, 5, 0, 1, 2]
    assert batch.logit_rows.tolist() == [0, 1, 4]
    assert (batch.drawn.rows.tolist(), batch.drawn.places.tolist()) == ([1, 4], [2, 0])
    with pytest.raises(KeyError):
        prepare(plan, tables, drawn_last=(10, 11))
