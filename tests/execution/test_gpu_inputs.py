"""What a step reads on a device: who goes to which attention, padding, and the largest step."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from decoders import Pager
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import AttentionWindow
from pagoda.cache.window import FULL_ATTENTION
from pagoda.execution.batch import Batch
from pagoda.execution.gpu.decode_inputs import DecodeInputs
from pagoda.execution.gpu.group_inputs import GroupInputs, sights
from pagoda.execution.gpu.inputs import BatchInputs
from pagoda.execution.gpu.trial import largest_batch
from pagoda.kernels.gpu.prefill_tiling import AttentionKind, tile_prefill
from triton_device import DEVICE

BLOCK_SIZE = 4
WINDOWS = (FULL_ATTENTION, AttentionWindow(30), AttentionWindow(9, 2), AttentionWindow(30))
SIGHTS = sights(WINDOWS, narrowed=False)
KINDS = [AttentionKind(2, 2, 0), AttentionKind(32, 8, 0), AttentionKind(32, 8, 1)]


def batch_of(counts: list[int], computed: int = 3) -> Batch:
    pager = Pager(BLOCK_SIZE, 80_000, WINDOWS)
    steps = [(pager.sequence(range(computed + count + 2)), count) for count in counts]
    for sequence, _ in steps:
        sequence.num_computed = computed
    return pager.batch(steps)


def batch_inputs(tokens: int = 1, sequences: int = 1, blocks: int = 1) -> BatchInputs:
    return BatchInputs(
        KINDS, SIGHTS, DEVICE, max_num_tokens=tokens, max_num_seqs=sequences, max_blocks=blocks
    )


@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    computed=st.one_of(st.integers(0, 50), st.integers(1000, 9000)),
)
def test_the_largest_batch_finds_memory_that_is_there(counts: list[int], computed: int) -> None:
    batch = batch_of(counts, computed)
    blocks = batch.groups[0].block_tables.shape[1]
    inputs = batch_inputs(batch.num_tokens, len(counts), blocks)
    place = inputs.of(batch_of([1])).token_ids.data_ptr()
    assert inputs.of(batch).token_ids.data_ptr() == place


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_every_row_goes_to_one_attention_and_no_other(counts: list[int]) -> None:
    batch = batch_of(counts)
    inputs = batch_inputs().of(batch)
    decoding = [row for row, count in enumerate(counts) if count == 1]
    assert inputs.decode_sequences.tolist() == decoding
    assert inputs.decode_rows.tolist() == [int(batch.query_starts[row]) for row in decoding]
    tiled = {row for row, count in enumerate(counts) if count > 1}
    assert set(inputs.prefill) == (set(KINDS) if tiled else set())
    for kind, tiling in inputs.prefill.items():
        windows = batch.groups[kind.group].windows
        expected = tile_prefill(
            kind, batch.query_starts, batch.context_lens, np.array([*tiled]), windows
        )
        assert (tiling.kind, tiling.rounds) == (kind, expected.rounds)
        assert np.array_equal(tiling.tiles.cpu(), expected.tiles)
        assert np.array_equal(tiling.merges.cpu(), expected.merges)
        assert set(tiling.tiles[:, 0].tolist()) == tiled
    for number, (group, pages) in enumerate(zip(inputs.groups, batch.groups, strict=True)):
        assert group.block_tables.shape[1] % 16 == 0
        check_group(group, batch, number, len(counts))
        assert np.array_equal(group.slot_mapping.cpu(), pages.slot_mapping)
    for name in ("token_ids", "positions", "query_starts", "context_lens"):
        assert np.array_equal(getattr(inputs, name).cpu(), getattr(batch, name))


def check_group(group: GroupInputs, batch: Batch, number: int, count: int) -> None:
    """Tables, windows and places for sinks of the first `count` sequences."""
    pages = batch.groups[number]
    width = pages.block_tables.shape[1]
    assert np.array_equal(group.block_tables[:count, :width].cpu(), pages.block_tables)
    assert (group.windows is None) == WINDOWS[number].is_full
    assert (group.sink_positions is None) == (WINDOWS[number].sinks == 0)
    if group.windows is not None:
        assert np.array_equal(group.windows[:count].cpu(), pages.windows)
    if group.sink_positions is not None:
        places = group.sink_positions[: batch.num_tokens].cpu()
        assert np.array_equal(places, np.minimum(batch.positions, 10))


@pytest.mark.parametrize(
    ("counts", "size"),
    [([1], 2), ([1, 1], 2), ([1, 1, 1], 6), ([1] * 6, 6), ([1] * 7, None), ([1, 2], None)],
)
def test_a_batch_is_padded_to_the_next_size_if_all_have_one_token(
    counts: list[int], size: int | None
) -> None:
    assert DecodeInputs((2, 6), 8, SIGHTS, DEVICE).size_for(batch_of(counts)) == size
    assert DecodeInputs((), 8, SIGHTS, DEVICE).size_for(batch_of(counts)) is None
    some = dataclasses.replace(batch_of(counts), logit_rows=np.arange(len(counts) - 1))
    assert DecodeInputs((2, 6), 8, SIGHTS, DEVICE).size_for(some) is None


def test_rows_that_pad_have_no_slot_and_no_context() -> None:
    decode_inputs = DecodeInputs((2, 6), 8, SIGHTS, DEVICE)
    inputs = decode_inputs.inputs(6)
    crowd, few = batch_of([1] * 6, computed=9), batch_of([1] * 4)
    decode_inputs.fill(crowd, 6)
    decode_inputs.fill(few, 6)
    for number, (group, pages) in enumerate(zip(inputs.groups, few.groups, strict=True)):
        assert group.slot_mapping.tolist() == [*pages.slot_mapping.tolist(), -1, -1]
        check_group(group, few, number, 4)
    assert inputs.context_lens.tolist() == [4, 4, 4, 4, 0, 0]
    assert inputs.positions.tolist() == [3, 3, 3, 3, 0, 0]
    assert inputs.token_ids.tolist() == [*few.token_ids.tolist(), 0, 0]
    assert inputs.decode_rows.tolist() == inputs.decode_sequences.tolist() == list(range(6))
    assert not inputs.prefill
    decode_inputs.clear(6)
    assert all(group.slot_mapping.tolist() == [-1] * 6 for group in inputs.groups)
    assert inputs.context_lens.tolist() == [0] * 6


def test_the_longest_tables_of_the_largest_batch_fit() -> None:
    decode_inputs = DecodeInputs((3,), 21, SIGHTS, DEVICE)
    batch = batch_of([1, 1, 1])
    tables = np.arange(63, dtype=np.int32).reshape(3, 21)
    groups = tuple(
        dataclasses.replace(pages, block_tables=tables + number)
        for number, pages in enumerate(batch.groups)
    )
    decode_inputs.fill(dataclasses.replace(batch, groups=groups), 3)
    for number, group in enumerate(decode_inputs.inputs(3).groups):
        assert np.array_equal(group.block_tables[:, :21].cpu(), tables + number)


@given(
    tokens=st.integers(1, 300),
    sequences=st.integers(1, 40),
    longest=st.integers(1, 100),
    block_size=st.sampled_from([1, 4, 16]),
    prompt_rows=st.integers(0, 50),
)
def test_the_largest_step_is_as_large_as_may_be(
    tokens: int, sequences: int, longest: int, block_size: int, prompt_rows: int
) -> None:
    batch = largest_batch(tokens, sequences, longest, block_size, prompt_rows)
    counts = np.diff(batch.query_starts)
    assert batch.num_tokens == counts.sum() == min(tokens, sequences * longest)
    assert len(counts) == min(sequences, batch.num_tokens)
    assert counts.min() >= 1
    assert counts.max() <= longest
    assert np.array_equal(counts, batch.context_lens)
    assert (batch.groups[0].slot_mapping == -1).all()
    assert batch.groups[0].block_tables.shape == (len(counts), -(-counts.max() // block_size))
    rows = batch.logit_rows.tolist()
    assert len(set(rows)) == len(rows) == min(batch.num_tokens, len(counts) + prompt_rows)
    assert rows == sorted(rows)
    assert set(rows) >= set((batch.query_starts[1:] - 1).tolist())
