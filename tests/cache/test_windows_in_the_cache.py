"""Groups of layers in one pool: what is held, let go, found again and asked for."""

from __future__ import annotations

import pytest

from pagoda.cache import AttentionWindow, BlockTable, CacheManager
from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.block import HOLE
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.layers import SlidingWindowLayerSpec
from pagoda.cache.retention import parse_retention, require_length, require_retention
from pagoda.cache.spec import CacheSpec
from pagoda.cache.window import FULL_ATTENTION
from pagoda.errors import BlockTableError, InvalidOptionError

SIZE = 4
WINDOW = AttentionWindow(6)
STREAMING = AttentionWindow(6, 2)


def compute(cache: CacheManager, table: BlockTable, tokens: list[int], *stops: int) -> None:
    """Bring a table from what it holds to each of these numbers of tokens, a step each."""
    start = table.num_settled
    for stop in stops:
        assert cache.reserve(table, start, stop) is not None
        cache.commit(table, tokens, stop)
        cache.check_integrity()
        start = stop


def begun(cache: CacheManager, tokens: list[int], **options: AttentionWindow) -> BlockTable:
    table = cache.open(**options)  # type: ignore[arg-type]
    cache.acquire(table, tokens, cache.match(table, tokens))
    return table


def of_group(table: BlockTable, group: int) -> list[bool]:
    """For each block whether it is held."""
    return [block_id != HOLE for block_id in table.block_ids[group :: table.num_groups]]


def test_each_group_holds_what_the_next_rows_see() -> None:
    cache = CacheManager(40, SIZE, windows=(FULL_ATTENTION, WINDOW, STREAMING))
    tokens = list(range(40))
    table = begun(cache, tokens)
    compute(cache, table, tokens, 16, 17, 30)
    # The row at position 28, from which a match goes on, sees 23 … 28: block 5 on.
    assert of_group(table, 0) == [True] * 8
    assert of_group(table, 1) == [False] * 5 + [True] * 3
    assert of_group(table, 2) == [True] + [False] * 4 + [True] * 3
    assert cache.num_free_blocks == 40 - 8 - 3 - 4


def test_the_memory_of_a_stream_is_bounded() -> None:
    most = STREAMING.num_blocks(10**6, SIZE, 5)
    cache = CacheManager(most, SIZE, windows=(STREAMING,), under_way_tokens=5)
    tokens = list(range(1000))
    table = begun(cache, tokens)
    compute(cache, table, tokens, *range(5, 1001, 5))
    assert sum(of_group(table, 0)) <= most


def test_a_next_turn_begins_where_the_last_ended_and_not_before() -> None:
    cache = CacheManager(100, SIZE, windows=(FULL_ATTENTION, WINDOW))
    tokens = list(range(50))
    table = begun(cache, tokens[:30])
    compute(cache, table, tokens, 30, *range(31, 45))
    cache.free(table)
    follow_up = cache.open()
    assert cache.match(follow_up, tokens).num_tokens == 44
    # All blocks are still there, those that were passed too.
    assert cache.match(cache.open(), tokens[:13]).num_tokens == 12
    # Where room is short, these go first, and the end of the prompt stays.
    other = cache.open()
    cache.reserve(other, 0, 4 * SIZE)
    passed = 100 - cache.num_free_blocks
    assert passed == 8
    more = cache.open()
    spare = cache.num_free_blocks - cache.stats().num_cached_blocks
    cache.reserve(more, 0, (spare // 2 + 2) * SIZE)
    assert cache.match(cache.open(), tokens[:13]).num_tokens < 12
    assert cache.match(cache.open(), tokens[:31]).num_tokens == 28
    assert cache.match(follow_up, tokens).num_tokens == 44
    cache.check_integrity()


def test_a_match_is_what_all_groups_can_go_on_from() -> None:
    cache = CacheManager(40, SIZE, windows=(FULL_ATTENTION, WINDOW))
    tokens = list(range(32))
    table = begun(cache, tokens)
    compute(cache, table, tokens, 32)
    cache.free(table)
    lost = cache._blocks.index.find(table.keys[6], 1)
    assert lost is not None
    cache._blocks.pool.forget([lost])
    cache._blocks.index.remove(lost)
    found = cache.match(cache.open(), tokens)
    assert found.num_tokens == 24, "block 6 of the window is seen from 25 on"
    assert [block == HOLE for block in found.block_ids[1::2]] == [True] * 4 + [False] * 2
    assert cache.match(cache.open(), tokens).in_flight is None
    again = begun(cache, tokens)
    assert cache.match(cache.open(), tokens).in_flight == again.keys[6].hash


def test_sequences_of_another_retention_share_nothing() -> None:
    cache = CacheManager(40, SIZE)
    tokens = list(range(24))
    table = begun(cache, tokens)
    compute(cache, table, tokens, 24)
    assert cache.match(cache.open(), tokens).num_tokens == 23
    assert cache.match(cache.open(retention=STREAMING), tokens).num_tokens == 0
    kept = begun(cache, tokens, retention=STREAMING)
    compute(cache, kept, tokens, 24)
    assert cache.match(cache.open(retention=STREAMING), tokens).num_tokens == 23
    assert cache.match(cache.open(retention=WINDOW), tokens).num_tokens == 0


def test_a_layer_with_a_narrower_window_keeps_to_it() -> None:
    assert WINDOW.narrowed(AttentionWindow(100, 4)) == WINDOW
    assert WINDOW.narrowed(AttentionWindow(4, 3)) == WINDOW
    assert WINDOW.narrowed(AttentionWindow(4, 2)) == AttentionWindow(4, 2)
    assert FULL_ATTENTION.narrowed(STREAMING) == STREAMING
    assert STREAMING.narrowed(FULL_ATTENTION) == STREAMING


def test_what_was_let_go_is_not_reserved_again() -> None:
    cache = CacheManager(12, SIZE, windows=(WINDOW,))
    tokens = list(range(40))
    table = begun(cache, tokens)
    compute(cache, table, tokens, 20, 40)
    before = list(table.block_ids)
    with pytest.raises(BlockTableError, match="windows have let go") as refusal:
        cache.reserve(table, 0, SIZE)
    assert refusal.value.field == "start"
    assert list(table.block_ids) == before
    cache.check_integrity()


def test_blocks_kept_for_others_go_before_anybody_is_turned_away() -> None:
    window = AttentionWindow(2)
    cache = CacheManager(window.num_blocks(10**4, 16, 2), 16, windows=(window,), under_way_tokens=2)
    tokens = list(range(200))
    table = begun(cache, tokens)
    compute(cache, table, tokens, *range(2, 200, 2))
    assert sum(of_group(table, 0)) == 2, "of as many blocks as one sequence keeps at most"


def test_a_block_that_was_passed_is_new_to_the_policy_when_it_is_taken_again() -> None:
    forgotten: list[int] = []

    class Watched(LRU):
        def forget(self, block_id: int) -> None:
            forgotten.append(block_id)
            super().forget(block_id)

    cache = CacheManager(6, SIZE, windows=(WINDOW,), eviction=Watched())
    tokens = list(range(200))
    table = begun(cache, tokens[:8])
    compute(cache, table, tokens, *range(8, 100, 4))
    assert len(set(forgotten)) > 3


def test_where_a_tail_is_gone_a_turn_is_still_found() -> None:
    cache = CacheManager(40, SIZE, windows=(FULL_ATTENTION, WINDOW))
    tokens = list(range(60))
    table = begun(cache, tokens[:20])
    compute(cache, table, tokens, 20, *range(21, 53))
    cache.free(table)
    found = []
    other = cache.open()
    for stop in range(SIZE, 18 * SIZE, SIZE):
        if cache.reserve(other, 0, stop) is None:
            break
        found.append(cache.match(cache.open(), tokens).num_tokens)
    assert found[0] == 52
    assert set(found) == {52, 20, 0}, "the tail goes, then the end of the prompt"


def test_a_fork_needs_what_its_last_token_sees() -> None:
    cache = CacheManager(40, SIZE, windows=(WINDOW,))
    tokens = list(range(40))
    table = begun(cache, tokens)
    compute(cache, table, tokens, 20)
    child = cache.fork(table, 20)
    assert child.block_ids == table.block_ids
    compute(cache, table, tokens, 40)
    with pytest.raises(BlockTableError, match="let go of what is behind a window"):
        cache.fork(table, 20)
    cache.check_integrity()


def test_admission_asks_for_no_more_than_windows_keep() -> None:
    cache = CacheManager(100, SIZE, windows=(FULL_ATTENTION, WINDOW), under_way_tokens=8)
    match = cache.match(cache.open(), list(range(200)))
    # ⌈(6 - 1 + 8) / 4⌉ + 1 blocks of the window beside all of full attention.
    assert cache.num_blocks_to_admit(200, match) == 50 + 5
    assert cache.num_blocks_to_admit(6, match) == 2 + 2


def test_pages_of_all_groups_take_equally_much() -> None:
    wide, narrow = (AttentionLayerSpec(2, 64, name) for name in ("bfloat16", "int8_per_token_head"))
    layers = (
        narrow, SlidingWindowLayerSpec(wide, 32), wide, SlidingWindowLayerSpec(narrow, 32),
        SlidingWindowLayerSpec(narrow, 32), SlidingWindowLayerSpec(narrow, 32),
    )  # fmt: skip
    spec = CacheSpec(layers, 16)
    assert spec.group_of_layers == (0, 1, 0, 2, 1, 2)
    assert spec.place_of_layers == (1, 0, 0, 0, 1, 1)
    assert spec.windows == (FULL_ATTENTION, AttentionWindow(32), AttentionWindow(32))
    assert spec.block_bytes == wide.block_bytes(16) + narrow.block_bytes(16)
    assert spec.num_blocks(160) == 10 + 2 * 3
    assert CacheSpec(tuple(layer.vectors for layer in layers), 16).num_blocks(160) == 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full", FULL_ATTENTION),
        ("window:1024", AttentionWindow(1024)),
        ("streaming", AttentionWindow(1020, 4)),
        ("streaming:window=60", AttentionWindow(60, 4)),
        ("streaming:sinks=0,window=60", AttentionWindow(60)),
    ],
)
def test_a_retention_by_its_name(text: str, expected: AttentionWindow) -> None:
    assert parse_retention(text) == expected
    assert parse_retention(str(expected)) == expected


A_FORM = "full, window:1024"
A_WINDOW = "a window of 1 to 999999999 tokens"


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        *((text, A_FORM) for text in ("", "fulll", "full:3", "full:", "window", "window:")),
        *(
            (text, A_FORM)
            for text in ("window:+1", "window:1.5", "window:064", "streaming:", "streaming:4")
        ),
        *((text, A_FORM) for text in ("streaming:sinks=x", "h2o:window=3", None, ["full"], {})),
        *((f"window:{number}", A_WINDOW) for number in (-1, 0, 10**9, 10**98)),
        ("streaming:window=-9", A_WINDOW),
        ("streaming:sinks=-1", "at least 0 sinks"),
        ("streaming:sinks=4,window=3", "at most as many sinks as the window has tokens, 3"),
        ("streaming:sinks=4,window=9,sinks=4", "sinks named once"),
    ],
)
def test_what_is_no_retention_is_refused_by_name(text: str, limit: str) -> None:
    with pytest.raises(InvalidOptionError, match=limit) as refusal:
        parse_retention(text)
    assert refusal.value.field == "kv_retention"


def test_a_retention_that_does_not_suit_a_model_is_refused() -> None:
    require_length(10**6, 128, STREAMING)
    require_length(128, 128, FULL_ATTENTION)
    for length, retention in ((129, FULL_ATTENTION), (10**7, STREAMING)):
        with pytest.raises(InvalidOptionError) as refusal:
            require_length(length, 128, retention)
        assert refusal.value.field == "max_model_len"
    require_retention(FULL_ATTENTION, block_size=16, most_tokens=8)
    for window in (AttentionWindow(15), AttentionWindow(100, 29)):
        with pytest.raises(InvalidOptionError) as refusal:
            require_retention(window, block_size=16, most_tokens=128)
        assert refusal.value.field == "kv_retention"
