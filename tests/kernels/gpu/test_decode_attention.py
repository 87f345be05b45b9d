"""Attention of one new token per sequence: like the plain truth, and the same alone and batched."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
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
from pagoda.kernels.gpu.attention_tile import capped, key_offsets
from pagoda.kernels.gpu.decode_attention import SPLIT_TOKENS, decode_attention, tile_tokens
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import MAX_SPLITS, decode_parts
from triton_device import HAS_GPU

HEADS = CacheShape(32, 4, 2, 16, torch.float16)
SIZES = [300] + ([4096, 40_000] if HAS_GPU else [])


def decode(case: PagedSequences, rows: list[int] | None = None) -> torch.Tensor:
    """Results of the given rows; a sequence has one row, so row i is that of sequence i."""
    rows = list(range(len(case.query))) if rows is None else rows
    index = torch.tensor(rows, dtype=torch.int32, device=case.query.device)
    out = case.empty()
    num_parts = decode_parts(len(rows), case.shape.num_heads)
    partial = PartialSums.of(num_parts, case.shape.head_dim, case.query.device)
    for each in partial:
        each.fill_(float("nan"))
    decode_attention(
        out, case.query, case.blocks, case.block_tables, case.context_lens,
        index, index, case.shape.scale, case.windows, partial,
        **case.softmax,
    )  # fmt: skip
    return out


def check(case: PagedSequences, out: torch.Tensor) -> None:
    for row, context_len in enumerate(case.context_lens.tolist()):
        if context_len == 0:
            assert (out[row] == 0).all()
        else:
            assert_near(out[row : row + 1], case.expected(row))


@settings(max_examples=40)
@given(
    cache_shapes,
    st.lists(st.integers(0, 400), min_size=1, max_size=3),
    windows,
    softmaxes,
    st.integers(0, 2**32 - 1),
)
def test_like_the_plain_truth(
    shape: CacheShape, context_lens: list[int], window: AttentionWindow | None,
    softmax: tuple[float | None, float | None], seed: int,
) -> None:  # fmt: skip
    case = paged_sequences(shape, context_lens, [1] * len(context_lens), window, seed)
    case = with_softmax(case, *softmax)
    check(case, decode(case))


@pytest.mark.parametrize("level", [None, 5.0])
@pytest.mark.parametrize("context_len", [255, 256, 257, 512, 513])
def test_at_the_edges_of_splits(context_len: int, level: float | None) -> None:
    case = with_softmax(paged_sequences(HEADS, [context_len, 1], [1, 1]), None, level)
    check(case, decode(case))


@pytest.mark.parametrize("window", [None, AttentionWindow(1), AttentionWindow(600, 20)], ids=str)
def test_splits_grow_where_their_number_has_reached_its_limit(
    window: AttentionWindow | None,
) -> None:
    shape = CacheShape(16, 2, 1, 64, torch.float32)
    case = paged_sequences(shape, [MAX_SPLITS * SPLIT_TOKENS + 700], [1], window)
    check(case, decode(case))


@pytest.mark.parametrize("num_tokens", SIZES)
def test_shape_of_llama_3_8b(num_tokens: int) -> None:
    shape = CacheShape(128, 4, 8, 16, DTYPES[-1])
    case = paged_sequences(shape, [num_tokens, num_tokens // 3, 1], [1] * 3)
    check(case, decode(case))


@pytest.mark.parametrize("softmax", [(None, None), (5.0, 1.0)])
def test_a_row_is_the_same_alone_and_in_a_batch(
    softmax: tuple[float | None, float | None],
) -> None:
    case = with_softmax(paged_sequences(HEADS, [700, 3, 0, 256, 300], [1] * 5), *softmax)
    together = decode(case)
    for row, context_len in enumerate(case.context_lens.tolist()):
        # alone, its table is as short as can be, too
        most_blocks = max(1, -(-context_len // HEADS.block_size))
        alone = replace(case, block_tables=case.block_tables[:, :most_blocks])
        assert torch.equal(decode(alone, [row])[row], together[row])


@pytest.mark.parametrize("most_programs", [1, 2 * 3 * 2])
@pytest.mark.parametrize("window", [None, AttentionWindow(300, 20)], ids=str)
def test_programs_that_have_several_splits_change_no_bit(
    most_programs: int, window: AttentionWindow | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = paged_sequences(HEADS, [1300, 0, 520], [1] * 3, window)
    expected = decode(case)
    module = sys.modules["pagoda.kernels.gpu.decode_attention"]
    monkeypatch.setattr(module, "_MOST_PROGRAMS", most_programs)
    assert torch.equal(decode(case), expected)


def test_rows_and_sequences_are_any_and_other_rows_stay() -> None:
    case = paged_sequences(HEADS, [300, 3, 40, 290], [1] * 4)
    wanted, sequences = [3, 0], [1, 3]
    device = case.query.device
    out = case.empty()
    decode_attention(
        out, case.query, case.blocks, case.block_tables, case.context_lens,
        torch.tensor(wanted, dtype=torch.int32, device=device),
        torch.tensor(sequences, dtype=torch.int32, device=device),
        HEADS.scale, None,
        PartialSums.of(decode_parts(2, HEADS.num_heads), HEADS.head_dim, device),
    )  # fmt: skip
    assert torch.isnan(out[[1, 2]]).all()
    for row, sequence in zip(wanted, sequences, strict=True):
        exchanged = case.query.clone()
        exchanged[sequence] = case.query[row]
        expected = replace(case, query=exchanged).expected(sequence)
        assert_near(out[row : row + 1], expected)


@pytest.mark.parametrize("context_len", [200, 600])
def test_sink_logits_may_vanish_or_leave_nothing(context_len: int) -> None:
    case = paged_sequences(HEADS, [context_len], [1])
    vanishing, overwhelming = (with_softmax(case, None, level) for level in (-1e3, 1e3))
    assert torch.equal(decode(vanishing), decode(case))
    assert (decode(overwhelming) == 0).all()


@triton.jit
def store_capped(out, x, cap):
    i = tl.arange(0, 4096)
    tl.store(out + i, capped(tl.load(x + i), cap))


@pytest.mark.parametrize("cap", [5.0, 50.0])
def test_scores_are_capped_within_their_bound(cap: float, device: torch.device) -> None:
    sizes = torch.logspace(-6, 2.5, 2048, device=device)
    x = torch.cat([sizes, -sizes])
    out = torch.empty_like(x)
    store_capped[(1,)](out, x, cap)
    truth = cap * torch.tanh(x.double() / cap)
    assert ((out - truth) / truth).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_splits_are_whole_tiles(dtype: torch.dtype) -> None:
    for head_dim in (16, 64, 80, 128, 256):
        tile = tile_tokens(head_dim, dtype)
        assert tile >= 16
        assert SPLIT_TOKENS % tile == 0


@triton.jit
def store_offsets(
    out, block_ids, block_numbers: tl.constexpr, block_size: tl.constexpr, head_dim: tl.constexpr
):
    i = tl.arange(0, 4)
    tokens = i * 7
    offsets = key_offsets(tl.load(block_ids + i), tokens, 3, block_numbers, block_size, head_dim)
    tl.store(out + i, offsets)


def test_offsets_pass_the_range_of_32_bits(device: torch.device) -> None:
    block_ids = torch.tensor([0, 70_000, 600_000, 2**31 - 1], dtype=torch.int32, device=device)
    out = torch.zeros(4, dtype=torch.int64, device=device)
    store_offsets[(1,)](out, block_ids, block_numbers=2 * 8 * 16 * 128, block_size=16, head_dim=128)
    assert out.tolist() == [
        block * 2 * 8 * 16 * 128 + (3 * 16 + token % 16) * 128
        for block, token in zip(block_ids.tolist(), (0, 7, 14, 21), strict=True)
    ]
