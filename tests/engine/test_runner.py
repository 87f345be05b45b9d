"""The arrays of a step."""

import numpy as np

from pagoda.cache import BlockCopy
from pagoda.engine.runner import PaddedTables, prepare
from pagoda.scheduling import ScheduledSequence, StepPlan


def scheduled(number: int, start: int, tokens: list[int], blocks: list[int], rows: int):
    block_ids = np.array(blocks, dtype=np.int32)
    return ScheduledSequence(number, start, tuple(tokens), block_ids, rows, rows > 0)


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
    assert batch.slot_mapping.tolist() == [5, 30, 31, 0, 1, 16, 17]
    assert batch.query_starts.tolist() == [0, 1, 5, 7]
    assert batch.context_lens.tolist() == [6, 6, 2]
    assert batch.block_tables.tolist() == [[3, 1], [7, 0], [4, 0]]
    assert batch.logit_rows.tolist() == [0, 5, 6]
    assert (batch.copy_sources.tolist(), batch.copy_targets.tolist()) == ([9, 1], [1, 8])
    assert batch.num_tokens == 7
