from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import TOLERANCE, assert_close, group_of, seen, stored

from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention_alone import paged_attention
from pagoda.kernels.cpu.attention_scratch import split_tokens
from pagoda.kernels.cpu.attention_tiling import AttentionTiling
from pagoda.kernels.cpu.heads import HeadShape

# A kernel that cannot be kept on disk would be compiled at every start; Numba only warns.
pytestmark = [pytest.mark.threads, pytest.mark.filterwarnings("error::numba.NumbaWarning")]

NO_WINDOW = 2**31 - 1
LOG2_E = 1.4426950408889634


class Pages:
    """Random K and V of two sequences, in blocks in random order among others full of NaN."""

    def __init__(self, kv_heads: int, group: int, head_dim: int, block_size: int, dtype: str):
        self.kv_heads, self.group = kv_heads, group
        self.head_dim, self.block_size, self.dtype = head_dim, block_size, dtype
        self.rng = np.random.default_rng(head_dim + block_size)
        self.shape = HeadShape(kv_heads, group, head_dim, block_size, head_dim)
        self.packed = group_of(dtype)
        self.split = split_tokens(block_size)
        self.context = 2 * self.split + block_size // 2 + 3
        per_sequence = -(-self.context // block_size)
        num_blocks = 2 * per_sequence + 2
        self.tables = self.rng.permutation(num_blocks)[: 2 * per_sequence].reshape(2, -1)
        self.tables = self.tables.astype(np.int32)
        width = 2 * kv_heads * head_dim * block_size
        self.blocks = stored(np.full((num_blocks, width), np.nan), dtype)
        pages = self.blocks.reshape(num_blocks, 2, kv_heads, -1)
        for table in self.tables:
            for token in range(self.context):
                slot = int(table[token // block_size]) * block_size + token % block_size
                for head in range(kv_heads):
                    key, value = stored(self.rng.normal(size=(2, head_dim)), dtype)
                    reference.write_token(pages, slot, head, key, value, self.packed)

    def queries(self, rows: int) -> Array:
        heads = self.kv_heads * (self.group + 2)  # as the merged projection leaves them
        drawn = stored(self.rng.normal(size=(rows, heads * self.head_dim)), self.dtype)
        return seen(drawn).copy()

    def run(
        self,
        queries: Array,
        positions: list[int],
        work: list[tuple[int, ...]],  # without heads: all
        starts: list[int] = (),  # of the parts of each row, the first `num_parts` items
        num_parts: int = 0,
        window: int = NO_WINDOW,
        num_threads: int = 2,
        tokens: list[int] | None = None,
        sinks: int = 0,
        sink_queries: Array | None = None,
        first_split: int = 0,  # that rows have parts of
        logit_cap: float | None = None,
        sink_logits: Array | None = None,
    ) -> Array:
        heads = self.kv_heads * self.group
        out = stored(np.full((len(positions), heads * self.head_dim), np.nan), self.dtype)
        items = [(*item, *((0, self.kv_heads) if len(item) == 5 else ())) for item in work]
        # Sinks come with a tile, or with the first part of its rows.
        items = [(*item, int(sinks > 0 and item[3] <= first_split)) for item in items]
        merges = [(row, start, 3 - first_split) for row, start in enumerate(starts)]
        tiling = AttentionTiling(
            block_tables=self.tables,
            windows=np.array([(window, sinks)] * len(self.tables), np.int32),
            sink_positions=None,
            slot_mapping=np.empty(0, np.int64),
            positions=np.array(positions, np.int32),
            tokens=np.arange(len(positions)) if tokens is None else np.array(tokens),
            work=np.array(items, np.int64),
            num_parts=num_parts,
            starts=np.array(starts, np.int64) - first_split,
            merges=np.array(merges, np.int64).reshape(-1, 3),
            parts=np.empty((3 * len(starts), heads * (self.head_dim + 2)), np.float32),
            most_rows=heads * max(item[2] for item in work),
            in_turn=num_parts < len(items),
        )
        scale = self.head_dim**-0.5 * LOG2_E
        paged_attention(
            out, queries, [self.blocks], tiling, self.shape, scale, num_threads,
            sink_queries=sink_queries,
            logit_cap=None if logit_cap is None else logit_cap * LOG2_E,
            sink_logits=None if sink_logits is None else (sink_logits * LOG2_E).astype(np.float32),
        )  # fmt: skip
        return out

    def expected(
        self, query: Array, sequence: int, position: int, window: int | None, sinks: int = 0,
        sink_query: Array | None = None, logit_cap: float | None = None,
        sink_logits: Array | None = None,
    ) -> Array:  # fmt: skip
        heads = self.kv_heads * self.group
        pages = seen(self.blocks).reshape(len(self.blocks), 2, self.kv_heads, -1)
        own, of_sinks = (
            each[: heads * self.head_dim].reshape(heads, self.head_dim)
            for each in (query, query if sink_query is None else sink_query)
        )
        return reference.paged_attention(
            own, pages, self.tables[sequence], position, self.head_dim**-0.5, self.packed, window,
            sinks, of_sinks, logit_cap, sink_logits,
        ).reshape(-1)  # fmt: skip


CASES = [
    # kv heads, query heads to each, head_dim, block size, dtype
    (3, 3, 64, 16, "bfloat16"),
    (2, 1, 32, 8, "float32"),
    (1, 4, 128, 32, "bfloat16"),
    (1, 8, 256, 64, "float32"),
    (2, 2, 96, 128, "bfloat16"),
    (1, 16, 80, 16, "float32"),
    (2, 7, 20, 1, "float32"),
    (1, 5, 48, 24, "bfloat16"),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def pages(request: pytest.FixtureRequest) -> Pages:
    kv_heads, group, head_dim, block_size, dtype = request.param
    return Pages(kv_heads, group, head_dim, block_size, dtype)


@pytest.mark.parametrize("window", [None, 1, 37])
def test_rows_of_two_sequences_are_those_of_the_reference(pages: Pages, window: int | None):
    last = pages.context - 1
    start = pages.split - 2
    positions = [last, *range(start, start + 5), 0]
    queries = pages.queries(len(positions))
    work = [(0, 0, 1, 0, 3), (1, 1, 5, 0, 2), (0, 6, 1, 0, 1)]
    out = pages.run(queries, positions, work, window=window or NO_WINDOW)
    for row, (sequence, position) in enumerate(zip((0, 1, 1, 1, 1, 1, 0), positions, strict=True)):
        expected = pages.expected(queries[row], sequence, position, window)
        assert_close(out[row], expected, pages.dtype)


@pytest.mark.parametrize(("window", "sinks"), [(1, 1), (37, 4), (40, 300), (300, 17)])
def test_sinks_are_met_by_queries_of_their_own(pages: Pages, window: int, sinks: int):
    last = pages.context - 1
    positions = [last, last - 1, pages.split + 2, pages.split, sinks, max(0, sinks - 1), 0]
    queries, of_sinks = pages.queries(len(positions)), pages.queries(len(positions))
    work = [(0, 0, 2, 0, 3), (1, 2, 5, 0, 2)]
    out = pages.run(queries, positions, work, window=window, sinks=sinks, sink_queries=of_sinks)
    for row, (sequence, position) in enumerate(zip((0, 0, 1, 1, 1, 1, 1), positions, strict=True)):
        expected = pages.expected(queries[row], sequence, position, window, sinks, of_sinks[row])
        assert_close(out[row], expected, pages.dtype)


@pytest.mark.parametrize(
    ("window", "sinks", "logit_cap", "level"),
    [
        (100, 3, 5.0, None),
        (NO_WINDOW, 0, 50.0, 0.0),
        (NO_WINDOW, 0, None, -2.0),
        (100, 3, None, 12.0),
    ],
)
def test_scores_are_capped_and_sink_logits_take_their_part(
    pages: Pages, window: int, sinks: int, logit_cap: float | None, level: float | None
):
    positions = [pages.context - 1, pages.split + 2, pages.split - 1, 1, 0]
    queries, of_sinks = pages.queries(5), pages.queries(5)
    heads = pages.kv_heads * pages.group
    sink_logits = None if level is None else pages.rng.normal(size=heads) + level
    more = {"logit_cap": logit_cap, "sink_logits": sink_logits}
    out = pages.run(
        queries, positions, [(0, 0, 1, 0, 3), (1, 1, 4, 0, 2)], window=window, sinks=sinks,
        sink_queries=of_sinks, **more,
    )  # fmt: skip
    for row, (sequence, position) in enumerate(zip((0, 1, 1, 1, 1), positions, strict=True)):
        expected = pages.expected(
            queries[row], sequence, position, window, sinks, of_sinks[row], **more
        )
        # Far below 1 where sink logits have most of the weight; errors of weights do not even out.
        bound = 4 * TOLERANCE[pages.dtype] * np.abs(expected).max()
        assert np.abs(seen(out[row]) - expected).max() <= bound


def test_sink_logits_that_vanish_change_no_bit_and_those_that_are_all_leave_nothing(pages: Pages):
    positions, heads = [pages.context - 1, 3], pages.kv_heads * pages.group
    queries, work = pages.queries(2), [(0, 0, 1, 0, 3), (1, 1, 1, 0, 1)]
    without = pages.run(queries, positions, work)
    for vanishing in (-1e3, -np.inf):
        out = pages.run(queries, positions, work, sink_logits=np.full(heads, vanishing))
        assert np.array_equal(out, without)
    assert not seen(pages.run(queries, positions, work, sink_logits=np.full(heads, 1e3))).any()


@pytest.mark.parametrize(
    ("window", "sinks", "extras"),
    [(NO_WINDOW, 0, False), (NO_WINDOW, 4, True), (300, 0, True), (300, 4, False)],
)
def test_not_a_bit_depends_on_tiles_parts_companions_or_threads(
    pages: Pages, window: int, sinks: int, extras: bool
):
    """With any two of a window, sinks and `extras`: scores that are capped, and sink logits."""
    last = pages.context - 1
    positions = list(range(last - 9, last + 1))
    queries, of_sinks = pages.queries(10), pages.queries(10)
    # Splits that lie before the window of every row have no part where sinks come first.
    first = max(0, positions[0] - window + 1) // pages.split if sinks else 0
    splits = range(first, 3)
    starts = [len(splits) * row for row in range(10)]
    sink_logits = pages.rng.normal(size=pages.kv_heads * pages.group)

    def run(work: list[tuple[int, ...]], **more: object) -> Array:
        kept = {"window": window, "sinks": sinks, "sink_queries": of_sinks, "first_split": first}
        if extras:
            kept |= {"logit_cap": 5.0, "sink_logits": sink_logits}
        return pages.run(queries, positions, work, **kept, **more)

    one_by_one = run([(0, r, 1, 0, 3) for r in range(10)])
    assert np.array_equal(one_by_one, run([(0, 7, 3, 0, 3), (0, 0, 7, 0, 3)], num_threads=1))
    parts = [(0, 0, 8, split, split + 1) for split in splits]
    parts += [(0, 8, 2, split, split + 1) for split in splits]
    merged = run(parts, starts=starts, num_parts=len(parts))
    assert np.array_equal(one_by_one, merged)
    # In another order, the first split in parts of one head.
    tokens = [7, 0, 3, 9, 1, 2, 4, 5, 6, 8]
    shuffled = [(0, 0, 10, first, first + 1, head, head + 1) for head in range(pages.kv_heads)]
    shuffled += [(0, row, 5, split, split + 1) for row in (0, 5) for split in splits[1:]]
    merged = run(shuffled, starts=starts, num_parts=len(shuffled), tokens=tokens)
    assert np.array_equal(one_by_one, merged)
    by_head = [(0, 0, 10, 0, 3, head, head + 1) for head in range(pages.kv_heads)]
    assert np.array_equal(one_by_one, run(by_head))


def test_what_lies_after_a_token_is_not_even_read(pages: Pages):
    # Blocks are used again: what a sequence has not written yet may hold anything, even NaN.
    block_size = pages.block_size
    for position in (0, block_size // 2, pages.split - 1):
        queries = pages.queries(1)
        before = pages.run(queries, [position], [(0, 0, 1, 0, 1)])
        kept = pages.blocks.copy()
        view = pages.blocks.reshape(len(pages.blocks), 2, pages.kv_heads, -1)
        nan = stored(np.full(pages.head_dim, np.nan), pages.dtype)
        for token in range(position + 1, min(position + 40, pages.context)):
            slot = int(pages.tables[0, token // block_size]) * block_size + token % block_size
            for head in range(pages.kv_heads):
                reference.write_token(view, slot, head, nan, nan, pages.packed)
        after = pages.run(queries, [position], [(0, 0, 1, 0, 1)])
        pages.blocks[:] = kept
        assert np.array_equal(before, after)
        assert np.isfinite(seen(after)).all()
