from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import assert_close, group_of, seen, stored

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
        self.shape = HeadShape(kv_heads, group, head_dim, block_size)
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
    ) -> Array:
        heads = self.kv_heads * self.group
        out = stored(np.full((len(positions), heads * self.head_dim), np.nan), self.dtype)
        items = [(*item, *((0, self.kv_heads) if len(item) == 5 else ())) for item in work]
        merges = [(row, start, 3) for row, start in enumerate(starts)]
        tiling = AttentionTiling(
            block_tables=self.tables,
            positions=np.array(positions, np.int32),
            tokens=np.arange(len(positions)) if tokens is None else np.array(tokens),
            work=np.array(items, np.int64),
            num_parts=num_parts,
            starts=np.array(starts, np.int64),
            merges=np.array(merges, np.int64).reshape(-1, 3),
            parts=np.empty((3 * len(starts), heads * (self.head_dim + 2)), np.float32),
            most_rows=heads * max(item[2] for item in work),
        )
        scale = self.head_dim**-0.5 * LOG2_E
        paged_attention(out, queries, [self.blocks], tiling, self.shape, scale, window, num_threads)
        return out

    def expected(self, query: Array, sequence: int, position: int, window: int | None) -> Array:
        heads = self.kv_heads * self.group
        pages = seen(self.blocks).reshape(len(self.blocks), 2, self.kv_heads, -1)
        return reference.paged_attention(
            query[: heads * self.head_dim].reshape(heads, self.head_dim),
            pages, self.tables[sequence], position, self.head_dim**-0.5, self.packed, window,
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


@pytest.mark.parametrize("window", [NO_WINDOW, 300])
def test_not_a_bit_depends_on_tiles_parts_companions_or_threads(pages: Pages, window: int):
    last = pages.context - 1
    positions = list(range(last - 9, last + 1))
    queries = pages.queries(10)
    one_by_one = pages.run(queries, positions, [(0, r, 1, 0, 3) for r in range(10)], window=window)
    tiles = [(0, 7, 3, 0, 3), (0, 0, 7, 0, 3)]
    in_tiles = pages.run(queries, positions, tiles, window=window, num_threads=1)
    assert np.array_equal(one_by_one, in_tiles)
    parts = [(0, 0, 8, split, split + 1) for split in range(3)]
    parts += [(0, 8, 2, split, split + 1) for split in range(3)]
    starts = [3 * row for row in range(10)]
    merged = pages.run(queries, positions, parts, starts, num_parts=6, window=window)
    assert np.array_equal(one_by_one, merged)
    # In another order, the first split in parts of one head.
    tokens = [7, 0, 3, 9, 1, 2, 4, 5, 6, 8]
    shuffled = [(0, 0, 10, 0, 1, head, head + 1) for head in range(pages.kv_heads)]
    shuffled += [(0, first, 5, split, split + 1) for first in (0, 5) for split in (1, 2)]
    merged = pages.run(
        queries, positions, shuffled, starts, num_parts=len(shuffled), window=window, tokens=tokens
    )
    assert np.array_equal(one_by_one, merged)
    by_head = [(0, 0, 10, 0, 3, head, head + 1) for head in range(pages.kv_heads)]
    assert np.array_equal(one_by_one, pages.run(queries, positions, by_head, window=window))


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
