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
    softmaxes,
    windows,
    with_softmax,
)

from pagoda.cache import AttentionWindow
from pagoda.kernels.array import Array
from pagoda.kernels.gpu import prefill_tiling
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import PREFILL_PARTS
from pagoda.kernels.gpu.prefill_attention import ProgramShape, prefill_attention
from pagoda.kernels.gpu.prefill_tiling import (
    SPLIT_UNIT,
    AttentionKind,
    PrefillTiling,
    tile_prefill,
)
from triton_device import HAS_GPU

ON_A_GPU = {name: getattr(prefill_tiling, name) for name in ("SPLIT_FROM", "SPLIT_TOKENS")}
TOKENS = {name: count // (1 if HAS_GPU else 4) for name, count in ON_A_GPU.items()}
"""Contexts that are split, and splits, are a quarter as long for the interpreter."""
SPLIT_FROM, SPLIT_TOKENS = TOKENS.values()
HEADS = CacheShape(32, 4, 2, 16, torch.float16)
SIZES = [130] + ([2500] if HAS_GPU else [])
LENGTH = 300 if HAS_GPU else 140
CHUNKS = [[64, 32, LENGTH - 96], [96, LENGTH - 96]]
# The interpreter's products depend on where in its tile a row lies; those of a GPU do not.
CHUNKS += [[150, 1, 149], [31, 64, 205], [299, 1]] if HAS_GPU else []


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in TOKENS.items():
        monkeypatch.setattr(prefill_tiling, name, count)


def plan_of(
    case: PagedSequences, wanted: list[int], num_parts: int = PREFILL_PARTS
) -> PrefillTiling[Array]:
    kind = AttentionKind(case.shape.num_heads, case.shape.num_kv_heads)
    starts, contexts = case.query_starts.cpu().numpy(), case.context_lens.cpu().numpy()
    sizes = None if case.windows is None else case.windows.sizes.cpu().numpy()
    return tile_prefill(kind, starts, contexts, np.array(wanted, np.int64), sizes, num_parts)


def run(case: PagedSequences, tiling: PrefillTiling[Array]) -> torch.Tensor:
    out = case.empty()
    partial = PartialSums.of(PREFILL_PARTS, case.shape.head_dim, out.device)
    for each in partial:
        each.fill_(float("nan"))
    tiles, merges = (
        torch.from_numpy(each).to(out.device) for each in (tiling.tiles, tiling.merges)
    )
    prefill_attention(
        out, case.query, case.blocks, case.block_tables,
        PrefillTiling(tiling.kind, tiles, merges, tiling.rounds), case.shape.scale, case.windows,
        partial, **case.softmax,
    )  # fmt: skip
    return out


def prefill(case: PagedSequences, wanted: list[int]) -> torch.Tensor:
    return run(case, plan_of(case, wanted))


def rows_of(case: PagedSequences, out: torch.Tensor, sequence: int) -> torch.Tensor:
    first, end = case.query_starts[sequence : sequence + 2].tolist()
    return out[first:end]


lengths = st.integers(0, 170).flatmap(
    lambda context_len: st.tuples(st.just(context_len), st.integers(0, min(context_len, 24)))
)


@settings(max_examples=15)
@given(
    cache_shapes,
    st.lists(lengths, min_size=1, max_size=2),
    windows,
    softmaxes,
    st.integers(0, 2**32 - 1),
)
def test_like_the_plain_truth(
    shape: CacheShape, lengths: list[tuple[int, int]], window: AttentionWindow | None,
    softmax: tuple[float | None, float | None], seed: int,
) -> None:  # fmt: skip
    context_lens, num_queries = map(list, zip(*lengths, strict=True))
    case = paged_sequences(shape, context_lens, num_queries, window, seed)
    case = with_softmax(case, *softmax)
    out = prefill(case, list(range(len(lengths))))
    for sequence, length in enumerate(num_queries):
        if length > 0:
            assert_near(rows_of(case, out, sequence), case.expected(sequence))


@pytest.mark.parametrize("group_size", [1, 3, 5, 7, 16])
@pytest.mark.parametrize("head_dim", [16, 160])
def test_tiles_of_every_group(group_size: int, head_dim: int) -> None:
    shape = CacheShape(head_dim, group_size, 1, 16, torch.float16)
    length = AttentionKind(group_size, 1).query_tokens + 1
    case = paged_sequences(shape, [length + 65], [length])
    assert_near(prefill(case, [0]), case.expected(0))


@pytest.mark.parametrize(
    ("window", "sinks"), [(1, 0), (50, 0), (64, 64), (100, 0), (129, 1), (20, 100), (1, 180)]
)
def test_windows_that_begin_inside_a_tile_and_at_its_edges(window: int, sinks: int) -> None:
    case = paged_sequences(HEADS, [200, 129, 90], [40, 33, 90], AttentionWindow(window, sinks))
    out = prefill(case, [0, 1, 2])
    for sequence in (0, 1, 2):
        assert_near(rows_of(case, out, sequence), case.expected(sequence))


@pytest.mark.parametrize("num_tokens", SIZES)
def test_shape_of_llama_3_8b(num_tokens: int) -> None:
    shape = CacheShape(128, 4, 8, 16, DTYPES[-1])
    case = paged_sequences(shape, [num_tokens, 70], [num_tokens // 4, 70])
    out = prefill(case, [0, 1])
    for sequence in (0, 1):
        assert_near(rows_of(case, out, sequence), case.expected(sequence))


@pytest.mark.parametrize("window", [None, AttentionWindow(50, 20)], ids=str)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_a_chunk_is_the_same_as_a_part_of_the_whole(
    window: AttentionWindow | None, chunks: list[int]
) -> None:
    case = paged_sequences(HEADS, [LENGTH], [LENGTH], window)
    whole = prefill(case, [0])
    end = 0
    for length in chunks:
        first, end = end, end + length
        chunk = PagedSequences(
            HEADS, window, case.blocks, case.block_tables,
            torch.full_like(case.context_lens, end),
            torch.tensor([0, length], dtype=torch.int32, device=whole.device),
            case.query[first:end], case.sink_query[first:end],
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


@settings(max_examples=3)
@given(
    cache_shapes,
    st.integers(SPLIT_FROM, SPLIT_FROM * 3 // 2),
    st.integers(2, 40),
    st.one_of(
        st.none(),
        st.builds(
            AttentionWindow, st.integers(SPLIT_FROM - 100, SPLIT_FROM * 4 // 3), st.integers(0, 90)
        ),
    ),
    st.integers(0, 2**32 - 1),
)
def test_splits_are_like_the_plain_truth(
    shape: CacheShape, context_len: int, num_queries: int, window: AttentionWindow | None,
    seed: int,
) -> None:  # fmt: skip
    case = paged_sequences(shape, [context_len], [num_queries], window, seed)
    assert_near(prefill(case, [0]), case.expected(0))


@pytest.mark.parametrize(
    ("beyond", "window"), [(0, None), (1, SPLIT_FROM), (9, None), (9, SPLIT_FROM), (20, None)]
)
def test_splits_that_end_within_the_rows(beyond: int, window: int | None) -> None:
    context_len = 4 * SPLIT_TOKENS + beyond
    case = paged_sequences(HEADS, [context_len], [20], window)
    assert plan_of(case, [0]).rounds[0].num_merges == 1
    assert_near(prefill(case, [0]), case.expected(0))


SPLIT_LENGTHS = [SPLIT_FROM + 76, 33, SPLIT_FROM * 5 // 4 + 20, SPLIT_FROM]


def test_a_split_sequence_is_the_same_alone_and_in_a_batch() -> None:
    case = paged_sequences(HEADS, [*SPLIT_LENGTHS, 7], [20, 33, 40, 2, 5])
    case = with_softmax(case, 5.0, 1.0)
    together = prefill(case, [4, 2, 0, 1, 3])
    for sequence in range(5):
        alone = prefill(case, [sequence])
        assert torch.equal(rows_of(case, alone, sequence), rows_of(case, together, sequence))
        assert_near(rows_of(case, alone, sequence), case.expected(sequence))


def test_later_rounds_use_the_same_memory_and_change_no_bit() -> None:
    case = paged_sequences(HEADS, SPLIT_LENGTHS, [20, 33, 40, 2])
    at_once = plan_of(case, [0, 1, 2, 3])
    in_rounds = plan_of(case, [0, 1, 2, 3], num_parts=32 * 8 * 6)
    assert (len(at_once.rounds), len(in_rounds.rounds)) == (1, 3)
    assert torch.equal(run(case, at_once), run(case, in_rounds))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
def test_splits_are_whole_tiles_of_keys(head_dim: int, dtype: torch.dtype) -> None:
    assert SPLIT_UNIT % ProgramShape.of(head_dim, dtype).keys == 0
    assert ON_A_GPU["SPLIT_TOKENS"] % SPLIT_UNIT == 0
