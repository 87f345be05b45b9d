"""Groups of layers: what they promise for any mixture, and sums done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.groups import form_groups
from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.layer import CachedLayer
from pagoda.cache.layers import ChunkedLayerSpec, SlidingWindowLayerSpec
from pagoda.cache.state import StateLayerSpec
from pagoda.errors import InvalidOptionError
from pagoda.planning.groups import GroupedPool, aligned_block_size, stages_of

FULL = AttentionLayerSpec(4, 64, "bfloat16")
WIDE = AttentionLayerSpec(2, 256, "bfloat16")
WINDOW = SlidingWindowLayerSpec(FULL, 512)
CHUNK = ChunkedLayerSpec(FULL, 1024)
STATE = StateLayerSpec(conv_length=3, conv_width=256, conv_dtype="bfloat16", state_values=2000)

layers = st.lists(st.sampled_from([FULL, WIDE, WINDOW, CHUNK]), min_size=1, max_size=40)


def pool_of(kept: list[CachedLayer], block_size: int = 16, **options: int) -> GroupedPool:
    return GroupedPool(form_groups(kept, block_size), (range(len(kept)),), **options)


@given(layers)
def test_every_layer_is_in_one_group_with_others_of_its_kind(kept: list[CachedLayer]) -> None:
    groups = form_groups(kept, 16)
    assert sorted(i for group in groups for i in group.layer_ids) == list(range(len(kept)))
    for group in groups:
        kinds = {kept[i].shares_blocks_with for i in group.layer_ids}
        assert kinds == {group.layer.shares_blocks_with}


@given(layers)
def test_pages_hold_their_layers_and_groups_are_about_as_large(kept: list[CachedLayer]) -> None:
    pool = pool_of(kept)
    for group in pool.groups:
        assert sum(group.page_bytes) <= pool.block_bytes
        for layer_id, page in zip(group.layer_ids, group.page_bytes, strict=True):
            assert page >= kept[layer_id].block_bytes(group.block_size)
    if len(pool.groups) > 1:
        assert len({page for group in pool.groups for page in group.page_bytes}) == 1


@given(layers, st.integers(0, 2**31), st.integers(1, 100_000))
def test_blocks_never_take_more_than_there_is(
    kept: list[CachedLayer], memory: int, length: int
) -> None:
    pool = pool_of(kept, under_way_tokens=2048, reserved_blocks=1)
    count = pool.num_blocks_in(memory)
    assert count * pool.block_bytes <= memory < (count + 1) * pool.block_bytes
    told = pool.longest_request(count)  # without the block that no request gets
    assert pool.num_blocks(told) <= count or told == 0
    longest = pool.longest_context(count, users=1)
    assert longest <= told
    assert pool.num_users(count, longest) >= 1 or longest == 0
    assert pool.num_users(count, longest + 1) == 0 or longest == pool.longest
    assert pool.num_users(count, length) * pool.num_blocks(length) <= max(0, count - 1)


@given(layers, st.integers(1, 2**30), st.integers(0, 2**30), st.integers(1, 50_000))
def test_more_memory_never_holds_fewer(
    kept: list[CachedLayer], memory: int, more: int, length: int
) -> None:
    pool = pool_of(kept)
    low, high = pool.num_blocks_in(memory), pool.num_blocks_in(memory + more)
    assert low <= high
    assert pool.num_users(low, length) <= pool.num_users(high, length)
    assert pool.longest_request(low) <= pool.longest_request(high)


@given(layers, st.integers(1, 2**30), st.sampled_from(["fp8_e4m3", "int4_per_token_head"]))
def test_fewer_bits_never_hold_fewer_tokens(
    kept: list[CachedLayer], memory: int, dtype: str
) -> None:
    small = pool_of([layer.stored_as(dtype) for layer in kept])
    large = pool_of(kept)
    assert small.block_bytes <= large.block_bytes
    assert small.num_blocks_in(memory) >= large.num_blocks_in(memory)


@given(layers, st.integers(1, 2**30), st.integers(64, 20_000), st.data())
def test_a_shared_beginning_never_costs_users(
    kept: list[CachedLayer], memory: int, context: int, data: st.DataObject
) -> None:
    pool = pool_of(kept)
    shared = data.draw(st.integers(0, context))
    count = pool.num_blocks_in(memory)
    assert pool.num_users(count, context, shared) >= pool.num_users(count, context)


def test_the_rarer_kind_gives_the_size_of_a_group() -> None:
    groups = form_groups([FULL] * 10 + [WINDOW] * 52, 16)
    assert [len(group.layer_ids) for group in groups] == [10, 9, 9, 9, 9, 8, 8]


def test_kinds_that_are_nearly_as_many_are_padded_to_the_larger() -> None:
    groups = form_groups([FULL] * 13 + [WINDOW] * 12, 16)
    assert [len(group.layer_ids) for group in groups] == [13, 12]
    assert pool_of([FULL] * 13 + [WINDOW] * 12).block_bytes == 13 * 16 * 1024


def test_a_page_that_divides_the_largest_grows_its_block() -> None:
    """Gemma 4 31B: 16 heads of 256 in windows, 4 of 512 in full layers: half a page."""
    full = AttentionLayerSpec(4, 512, "fp8_e4m3")
    window = SlidingWindowLayerSpec(AttentionLayerSpec(16, 256, "fp8_e4m3"), 1024)
    pool = pool_of([full] * 10 + [window] * 50)
    assert {(group.layer.kind, group.block_size) for group in pool.groups} == {
        ("full attention", 32), ("sliding window", 16),
    }  # fmt: skip
    assert (len(pool.groups), pool.block_bytes) == (6, 10 * 16 * 8192)


def test_layers_that_keep_every_token_are_one_group_whatever_their_pages() -> None:
    latent = LatentLayerSpec(512, 64, "bfloat16")
    sparse = LatentLayerSpec(512, 64, "fp8_ds_mla", index_size=128)
    [group] = form_groups([FULL, latent, sparse], 64)
    assert group.page_bytes == (64 * 1024, 64 * 1152, 64 * (656 + 132))


def test_a_block_grows_until_its_page_holds_a_state() -> None:
    """Qwen3.5-35B-A3B in fp8: a state of 2,146,304 bytes and 1,024 bytes a token: 2,096 tokens."""
    state = StateLayerSpec(3, 2 * 16 * 128 + 32 * 128, "bfloat16", 32 * 128 * 128)
    full = AttentionLayerSpec(2, 256, "fp8_e4m3")
    assert state.block_bytes(1) == 2_146_304
    assert aligned_block_size([full] * 10 + [state] * 30, 16, 16) == 2096
    assert aligned_block_size([full] * 10 + [state] * 30, 4096, 16) == 4096
    assert aligned_block_size([full], 16, 16) == 16


def test_a_state_takes_one_block_a_request_and_a_window_some() -> None:
    pool = pool_of([FULL] * 2 + [STATE] * 2, 16, under_way_tokens=100)
    assert [group.num_blocks(160, 100) for group in pool.groups] == [10, 1]
    assert WINDOW.num_blocks(100_000, 16, 2048) == -(-(511 + 2048) // 16) + 1
    assert WINDOW.num_blocks(100, 16, 2048) == 7 + 1
    assert CHUNK.num_blocks(100_000, 16, 2048) == -(-(1024 + 2048) // 16)


@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_share_the_layers_evenly(num_layers: int, num_stages: int) -> None:
    if num_stages > num_layers:
        with pytest.raises(InvalidOptionError):
            stages_of(num_layers, num_stages)
        return
    stages = stages_of(num_layers, num_stages)
    assert [i for stage in stages for i in stage] == list(range(num_layers))
    sizes = [len(stage) for stage in stages]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


def test_a_split_that_does_not_add_up_is_refused() -> None:
    assert stages_of(48, 2, (16, 32)) == (range(16), range(16, 48))
    with pytest.raises(InvalidOptionError, match="2 stages of 48 layers"):
        stages_of(48, 2, (16, 31))
