"""Attention of several tokens per sequence: like the plain truth, however it is cut or batched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_sequences import (
    DTYPES,
    CacheShape,
    PagedSequences,
    assert_near,
    cache_shapes,
    paged_sequences,
)

from pagoda.kernels.cuda.prefill_attention import prefill_attention, prefill_tiles, query_tile
from triton_device import HAS_GPU

HEADS = CacheShape(32, 4, 2, 16, torch.float16)
SIZES = [130] + ([2500] if HAS_GPU else [])
CHUNKS = [[64, 32, 204], [256, 44]]
# The interpreter's products depend on where in its tile a row lies; those of a GPU do not.
CHUNKS += [[150, 1, 149], [31, 64, 205], [299, 1]] if HAS_GPU else []


def prefill(case: PagedSequences, wanted: list[int]) -> torch.Tensor:
    tiles = prefill_tiles(case.query_starts.cpu().numpy(), np.array(wanted), case.shape.group_size)
    out = case.empty()
    prefill_attention(
        out, case.query, case.blocks, case.block_tables, case.context_lens, case.query_starts,
        torch.from_numpy(tiles).to(out.device), case.shape.scale, case.window,
    )  # fmt: skip
    return out


def rows_of(case: PagedSequences, out: torch.Tensor, sequence: int) -> torch.Tensor:
    first, end = case.query_starts[sequence : sequence + 2].tolist()
    return out[first:end]


lengths = st.integers(0, 170).flatmap(
    lambda context_len: st.tuples(st.just(context_len), st.integers(0, min(context_len, 24)))
)


@settings(max_examples=25)
@given(
    cache_shapes,
    st.lists(lengths, min_size=1, max_size=2),
    st.one_of(st.none(), st.integers(1, 150)),
    st.integers(0, 2**32 - 1),
)
def test_like_the_plain_truth(
    shape: CacheShape, lengths: list[tuple[int, int]], window: int | None, seed: int
) -> None:
    context_lens, num_queries = map(list, zip(*lengths, strict=True))
    case = paged_sequences(shape, context_lens, num_queries, window, seed)
    out = prefill(case, list(range(len(lengths))))
    for sequence, length in enumerate(num_queries):
        if length > 0:
            assert_near(rows_of(case, out, sequence), case.expected(sequence))


@pytest.mark.parametrize("group_size", [1, 3, 5, 7, 16])
@pytest.mark.parametrize("head_dim", [16, 160])
def test_tiles_of_every_group(group_size: int, head_dim: int) -> None:
    shape = CacheShape(head_dim, group_size, 1, 16, torch.float16)
    length = query_tile(group_size) + 1
    case = paged_sequences(shape, [length + 65], [length])
    assert_near(prefill(case, [0]), case.expected(0))


@pytest.mark.parametrize("window", [1, 50, 64, 100, 129])
def test_windows_that_begin_inside_a_tile_and_at_its_edges(window: int) -> None:
    case = paged_sequences(HEADS, [200, 129], [40, 33], window)
    out = prefill(case, [0, 1])
    for sequence in (0, 1):
        assert_near(rows_of(case, out, sequence), case.expected(sequence))


@pytest.mark.parametrize("num_tokens", SIZES)
def test_shape_of_llama_3_8b(num_tokens: int) -> None:
    shape = CacheShape(128, 4, 8, 16, DTYPES[-1])
    case = paged_sequences(shape, [num_tokens, 70], [num_tokens // 4, 70])
    out = prefill(case, [0, 1])
    for sequence in (0, 1):
        assert_near(rows_of(case, out, sequence), case.expected(sequence))


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_a_chunk_is_the_same_as_a_part_of_the_whole(window: int | None, chunks: list[int]) -> None:
    case = paged_sequences(HEADS, [300], [300], window)
    whole = prefill(case, [0])
    end = 0
    for length in chunks:
        first, end = end, end + length
        chunk = PagedSequences(
            HEADS, window, case.blocks, case.block_tables,
            torch.full_like(case.context_lens, end),
            torch.tensor([0, length], dtype=torch.int32, device=whole.device),
            case.query[first:end],
        )  # fmt: skip
        assert torch.equal(prefill(chunk, [0]), whole[first:end])


def test_a_sequence_is_the_same_alone_and_in_a_batch() -> None:
    case = paged_sequences(HEADS, [150, 33, 90, 7], [40, 33, 1, 5])
    together = prefill(case, [0, 1, 2, 3])
    for sequence in range(4):
        alone = prefill(case, [sequence])
        assert torch.equal(rows_of(case, alone, sequence), rows_of(case, together, sequence))


def test_rows_of_sequences_that_are_not_wanted_stay() -> None:
    case = paged_sequences(HEADS, [50, 9, 60], [10, 1, 20])
    out = prefill(case, [2, 0])
    assert torch.isnan(rows_of(case, out, 1)).all()
    for sequence in (0, 2):
        assert_near(rows_of(case, out, sequence), case.expected(sequence))


@given(st.lists(st.integers(0, 500), min_size=1, max_size=6), st.integers(1, 16), st.data())
def test_tiles_cover_each_row_once_and_the_last_come_first(
    num_queries: list[int], group_size: int, data: st.DataObject
) -> None:
    starts = np.concatenate([[0], np.cumsum(num_queries)])
    wanted = data.draw(st.lists(st.integers(0, len(num_queries) - 1), unique=True))
    tiles = prefill_tiles(starts, np.array(wanted, np.int64), group_size)
    assert tiles.dtype == np.int32
    assert tiles.shape == (len(tiles), 2)
    covered = [
        (sequence, row)
        for sequence, first in tiles.tolist()
        for row in range(first, min(first + query_tile(group_size), num_queries[sequence]))
    ]
    assert sorted(covered) == [
        (each, row) for each in sorted(wanted) for row in range(num_queries[each])
    ]
    assert (np.diff(tiles[:, 1]) <= 0).all()
