"""Attention to latents on a device: like the plain truth, and the same alone and batched."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from latent_sequences import (
    DTYPES,
    LatentLayer,
    LatentSequences,
    latent_layers,
    latent_sequences,
)
from paged_sequences import assert_near

from pagoda.kernels.gpu import parts
from pagoda.kernels.gpu import prefill_tiling as prefill_tilings
from pagoda.kernels.gpu.latent_decode import latent_decode, split_tokens
from pagoda.kernels.gpu.latent_prefill import latent_prefill
from pagoda.kernels.gpu.latent_tile import LatentProgram
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import (
    LATENT_PARTS,
    MAX_SPLITS,
    MOST_LATENT_HEADS,
    PREFILL_PARTS,
    latent_decode_parts,
    latent_rows_of_round,
)
from pagoda.kernels.gpu.prefill_tiling import (
    SPLIT_UNIT,
    AttentionKind,
    PrefillTiling,
    tile_prefill,
)

LAYER = LatentLayer(17, 40, 8, 16, torch.float16)


def decode(case: LatentSequences, rows: list[int] | None = None) -> torch.Tensor:
    """Results of the given rows; a sequence has one row, so row i is that of sequence i."""
    rows = list(range(len(case.query))) if rows is None else rows
    index = torch.tensor(rows, dtype=torch.int32, device=case.query.device)
    out, layer = case.empty(), case.layer
    num_parts = latent_decode_parts(len(rows), layer.num_heads)
    latent_decode(
        out, case.query, case.blocks, case.block_tables, case.context_lens, index, index,
        layer.scale, no_partial(num_parts, layer.rank, out.device),
    )  # fmt: skip
    return out


def prefill(case: LatentSequences, wanted: list[int] | None = None) -> torch.Tensor:
    """Results of the given sequences."""
    wanted = list(range(len(case.context_lens))) if wanted is None else wanted
    out, layer, device = case.empty(), case.layer, case.query.device
    kind = AttentionKind(layer.num_heads, 1)
    starts, contexts = case.query_starts.cpu().numpy(), case.context_lens.cpu().numpy()
    found = tile_prefill(kind, starts, contexts, np.array(wanted))
    tiles, merges = (torch.from_numpy(each).to(device) for each in (found.tiles, found.merges))
    latent_prefill(
        out, case.query, case.blocks, case.block_tables,
        PrefillTiling(kind, tiles, merges, found.rounds), layer.scale,
        no_partial(PREFILL_PARTS, layer.rank, device),
    )  # fmt: skip
    return out


def no_partial(num_parts: int, rank: int, device: torch.device) -> PartialSums:
    """Memory for parts with nothing in it that could be taken for one."""
    partial = PartialSums.of(num_parts, rank, device)
    for each in partial:
        each.fill_(float("nan"))
    return partial


@settings(max_examples=15)
@given(
    latent_layers,
    st.lists(st.integers(0, 400), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_decode_is_like_the_plain_truth(
    layer: LatentLayer, context_lens: list[int], seed: int
) -> None:
    case = latent_sequences(layer, context_lens, [1] * len(context_lens), seed)
    out = decode(case)
    for row, context_len in enumerate(context_lens):
        if context_len == 0:
            assert (out[row] == 0).all()
        else:
            assert_near(out[row : row + 1], case.expected(row))


@settings(max_examples=15)
@given(
    latent_layers,
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 12)), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_prefill_is_like_the_plain_truth(
    layer: LatentLayer, lengths: list[tuple[int, int]], seed: int
) -> None:
    """Of sequences whose last tokens are computed behind others that were there before."""
    contexts = [before + count for before, count in lengths]
    case = latent_sequences(layer, contexts, [count for _, count in lengths], seed)
    out, starts = prefill(case), case.query_starts.tolist()
    for sequence in range(len(lengths)):
        assert_near(out[starts[sequence] : starts[sequence + 1]], case.expected(sequence))


def test_the_shape_of_deepseek_v3() -> None:
    layer = LatentLayer(128, 512, 64, 16, DTYPES[-1])
    case = latent_sequences(layer, [33, 5], [1, 1])
    out = decode(case)
    for row in range(2):
        assert_near(out[row : row + 1], case.expected(row))
    case = latent_sequences(layer, [7], [3])
    assert_near(prefill(case), case.expected(0))


@pytest.mark.parametrize("context_len", [511, 512, 513, 1025])
def test_decode_at_the_edges_of_splits(context_len: int) -> None:
    assert split_tokens(LAYER.num_heads) == 512
    case = latent_sequences(LAYER, [context_len], [1])
    assert_near(decode(case), case.expected(0))


def test_splits_grow_where_their_number_has_reached_its_limit() -> None:
    layer = LatentLayer(2, 16, 8, 64, torch.float32)
    case = latent_sequences(layer, [MAX_SPLITS * split_tokens(2) + 700], [1])
    assert_near(decode(case), case.expected(0))


def test_a_row_is_the_same_alone_in_a_batch_in_rounds_and_by_few_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context_lens = [1100, 3, 0, 512, 600]
    case = latent_sequences(LAYER, context_lens, [1] * 5)
    together = decode(case)
    for row, context_len in enumerate(context_lens):
        # alone, its table is as short as can be, too
        most_blocks = max(1, -(-context_len // LAYER.block_size))
        alone = replace(case, block_tables=case.block_tables[:, :most_blocks])
        assert torch.equal(decode(alone, [row])[row], together[row])
    module = sys.modules["pagoda.kernels.gpu.latent_decode"]
    monkeypatch.setattr(module, "_MOST_PROGRAMS", 1)
    monkeypatch.setattr(module, "latent_rows_of_round", lambda num_heads: 2)
    assert torch.equal(decode(case), together)


def test_a_row_is_the_same_however_its_sequence_was_cut_and_whatever_is_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = latent_sequences(LAYER, [90, 41, 300], [30, 41, 2])
    together, starts = prefill(case), case.query_starts.tolist()
    chunk = replace(
        case,
        context_lens=case.context_lens - torch.tensor([7, 0, 0], device=case.query.device),
        query_starts=torch.tensor([0, 23, 71, 73], device=case.query.device),
    )
    assert torch.equal(prefill(chunk, [0])[:23], together[:23])
    for name, tokens in (("SPLIT_FROM", 200), ("SPLIT_TOKENS", 64)):
        monkeypatch.setattr(prefill_tilings, name, tokens)  # few, for the interpreter
    split = prefill(case)
    for sequence in range(3):
        own = slice(*starts[sequence : sequence + 2])
        assert torch.equal(prefill(case, [sequence])[own], split[own])
        assert_near(split[own], case.expected(sequence))
    assert not torch.equal(split[-2:], together[-2:]), "it was split"


def test_rows_and_sequences_are_any_and_other_rows_stay() -> None:
    case = latent_sequences(LAYER, [300, 3, 40, 290], [1] * 4)
    wanted, sequences = [3, 0], [1, 3]
    out, device = case.empty(), case.query.device
    latent_decode(
        out, case.query, case.blocks, case.block_tables, case.context_lens,
        torch.tensor(wanted, dtype=torch.int32, device=device),
        torch.tensor(sequences, dtype=torch.int32, device=device), LAYER.scale,
        no_partial(latent_decode_parts(2, LAYER.num_heads), LAYER.rank, device),
    )  # fmt: skip
    assert torch.isnan(out[[1, 2]]).all()
    for row, sequence in zip(wanted, sequences, strict=True):
        exchanged = case.query.clone()
        exchanged[sequence] = case.query[row]
        assert_near(out[row : row + 1], replace(case, query=exchanged).expected(sequence))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_splits_are_whole_tiles(dtype: torch.dtype) -> None:
    for num_rows in (1, 16, 17, 512):
        for rank in (16, 256, 257, 512):
            tile = LatentProgram.of(num_rows, rank, dtype).tile
            assert tile >= 16
            assert SPLIT_UNIT % tile == split_tokens(num_rows) % tile == 0


def test_memory_for_parts_is_enough_for_any_round_and_bounded() -> None:
    for num_heads in (1, 16, 40, 100, 128, MOST_LATENT_HEADS):
        of_round = latent_rows_of_round(num_heads)
        assert of_round > 0
        assert of_round % 16 == 0
        assert latent_decode_parts(3, num_heads) == 3 * num_heads * parts.MAX_SPLITS
        assert LATENT_PARTS // 2 < latent_decode_parts(10**6, num_heads) <= LATENT_PARTS
        kind = AttentionKind(num_heads, 1)
        assert kind.query_tokens * num_heads * kind.most_splits <= PREFILL_PARTS
