"""What a request's hint does to its cached blocks beside others, and how far it reaches."""

from __future__ import annotations

import pytest

from pagoda.cache import AttentionWindow, BlockTable, CacheManager
from pagoda.cache.evictions import POLICIES
from pagoda.cache.quota import Quota
from pagoda.cache_hint import CacheHint
from pagoda.errors import InvalidOptionError

SIZE = 2
PIN, SESSION, NONE = CacheHint.PIN, CacheHint.SESSION, CacheHint.NONE


def tokens_of(number: int, num_blocks: int) -> list[int]:
    return [1000 * number + token for token in range(num_blocks * SIZE)]


def begin(cache: CacheManager, tokens: list[int], tenant: str = "") -> BlockTable:
    """A sequence whose tokens are all computed."""
    table = cache.open(tenant=tenant)
    match = cache.match(table, tokens)
    cache.acquire(table, tokens, match)
    assert cache.reserve(table, match.num_tokens, len(tokens)) is not None
    cache.commit(table, tokens, len(tokens))
    return table


def serve(
    cache: CacheManager, number: int, num_blocks: int, hint: CacheHint | None = None,
    tenant: str = "",
) -> None:  # fmt: skip
    cache.free(begin(cache, tokens_of(number, num_blocks), tenant), hint)
    cache.check_integrity()


def found(cache: CacheManager, number: int, num_blocks: int, tenant: str = "") -> int:
    tokens = [*tokens_of(number, num_blocks), -1]
    return cache.match(cache.open(tenant=tenant), tokens).num_tokens // SIZE


def flood(cache: CacheManager, num_requests: int = 20) -> None:
    """Others that nobody hinted at, each of a quarter of the pool."""
    for number in range(100, 100 + num_requests):
        serve(cache, number, cache.stats().num_blocks // 4)


@pytest.mark.parametrize("eviction", sorted(POLICIES))
@pytest.mark.parametrize("hint", [PIN, SESSION])
def test_what_is_hinted_at_stays_while_others_come_and_go(eviction: str, hint: CacheHint) -> None:
    cache = CacheManager(16, SIZE, eviction=eviction)
    serve(cache, 1, 4, hint)
    flood(cache)
    assert found(cache, 1, 4) == 4
    cache = CacheManager(16, SIZE, eviction=eviction)
    serve(cache, 1, 4)
    flood(cache)
    assert found(cache, 1, 4) == 0


def test_what_hints_did_is_counted() -> None:
    cache = CacheManager(16, SIZE, eviction="lru")
    serve(cache, 1, 4, SESSION)
    assert cache.stats().hints == (0, 0, 0, 0), "the policy keeps them by itself"
    flood(cache)
    assert cache.stats().hints == (4, 4, 0, 0)
    serve(cache, 1, 4, SESSION)
    assert cache.stats().hints == (0, 4, 4, 0)
    flood(cache)
    serve(cache, 2, 4, SESSION)
    flood(cache)
    assert cache.stats().hints == (4, 12, 4, 4), "a quarter of the pool for one tenant"
    cache.forget()
    assert cache.stats().hints == (0, 12, 4, 4)
    cache.check_integrity()


@pytest.mark.parametrize("eviction", sorted(POLICIES))
def test_sessions_go_before_pinned_blocks_once_nothing_else_is_left(eviction: str) -> None:
    cache = CacheManager(16, SIZE, eviction=eviction)
    serve(cache, 1, 2, PIN)
    serve(cache, 2, 2, SESSION)
    cache.free(begin(cache, tokens_of(3, 14)))
    assert (found(cache, 1, 2), found(cache, 2, 2)) == (2, 0)
    cache.free(begin(cache, tokens_of(4, 16)))
    assert found(cache, 1, 2) == 0


@pytest.mark.parametrize("eviction", sorted(POLICIES))
def test_what_none_computes_goes_first_and_what_it_found_stays(eviction: str) -> None:
    cache = CacheManager(8, SIZE, eviction=eviction)
    serve(cache, 1, 2)
    cache.free(begin(cache, tokens_of(1, 2) + tokens_of(2, 2)), NONE)
    serve(cache, 3, 4)
    assert found(cache, 1, 2) == 2
    serve(cache, 4, 2)  # the pool is full: two blocks go
    assert (found(cache, 1, 2), found(cache, 3, 4), found(cache, 4, 2)) == (2, 4, 2)
    tokens = [*tokens_of(1, 2), *tokens_of(2, 2), -1]
    assert cache.match(cache.open(), tokens).num_tokens == 2 * SIZE


def test_a_request_without_a_hint_leaves_the_hint_of_an_earlier_one() -> None:
    cache = CacheManager(16, SIZE)
    serve(cache, 1, 4, PIN)
    serve(cache, 1, 4)
    serve(cache, 1, 4, NONE)  # it computed nothing but the last block's last token
    flood(cache)
    assert found(cache, 1, 4) == 4


def test_a_later_hint_takes_the_place_of_an_earlier_one() -> None:
    cache = CacheManager(16, SIZE)
    serve(cache, 1, 2, PIN)
    serve(cache, 1, 2, SESSION)
    serve(cache, 2, 2, SESSION)
    serve(cache, 2, 2, PIN)
    cache.free(begin(cache, tokens_of(3, 14)))
    assert (found(cache, 1, 2), found(cache, 2, 2)) == (0, 2)


def test_a_hint_counts_though_another_sequence_holds_the_blocks_longer() -> None:
    cache = CacheManager(16, SIZE)
    other = begin(cache, tokens_of(1, 4))
    serve(cache, 1, 4, PIN)
    cache.free(other)
    flood(cache)
    assert found(cache, 1, 4) == 4


def test_a_tenant_keeps_a_quarter_of_the_pool_heads_before_tails() -> None:
    cache = CacheManager(16, SIZE)
    serve(cache, 1, 6, PIN)
    flood(cache)
    assert found(cache, 1, 6) == 4


def test_sessions_make_way_for_pins_of_their_tenant_the_longest_unused_first() -> None:
    cache = CacheManager(16, SIZE)
    for number, hint in ((1, SESSION), (2, SESSION), (3, PIN)):
        serve(cache, number, 2, hint)
    flood(cache)
    assert [found(cache, number, 2) for number in (1, 2, 3)] == [0, 2, 2]


def test_all_tenants_keep_half_of_the_pool_and_whoever_has_most_gives_up_some() -> None:
    cache = CacheManager(16, SIZE)
    for number, (tenant, num_blocks) in enumerate([("a", 4), ("b", 3), ("c", 1), ("d", 1)]):
        serve(cache, number, num_blocks, PIN, tenant)
    flood(cache)
    kept = [found(cache, *each) for each in ((0, 4, "a"), (1, 3, "b"), (2, 1, "c"), (3, 1, "d"))]
    assert kept == [3, 3, 1, 1]


def test_hints_of_one_tenant_do_not_reach_into_what_another_is_due() -> None:
    quotas = {"a": Quota(cap=8), "b": Quota(floor=4)}
    cache = CacheManager(16, SIZE, quotas=quotas)
    serve(cache, 1, 4, None, "b")
    for number in range(2, 9):
        serve(cache, number, 4, PIN, "a")
    flood(cache)
    assert found(cache, 1, 4, "b") == 4
    assert cache.holdings()["a"].num_cached <= 8


def test_another_tenants_hint_goes_last_also_where_blocks_lie_apart() -> None:
    cache = CacheManager(16, SIZE, quotas={"a": Quota(), "b": Quota()})
    serve(cache, 1, 2, PIN, "a")
    serve(cache, 2, 2, SESSION, "b")
    cache.free(begin(cache, tokens_of(3, 14)))
    assert (found(cache, 1, 2, "a"), found(cache, 2, 2, "b")) == (2, 0)


def test_a_pin_outlives_younger_blocks_of_others_also_where_blocks_lie_apart() -> None:
    cache = CacheManager(16, SIZE, quotas={"a": Quota()})
    serve(cache, 1, 2, PIN, "a")
    flood(cache)
    assert found(cache, 1, 2, "a") == 2


@pytest.mark.parametrize("eviction", sorted(POLICIES))
def test_hints_of_one_off_texts_take_from_others_what_the_bound_allows(eviction: str) -> None:
    """Whatever of them is beyond the bound goes first: others have three quarters of the pool."""
    num_found = []
    for num_blocks, hint in ((64, SESSION), (48, None)):
        cache = CacheManager(num_blocks, SIZE, eviction=eviction)
        num_found.append(0)
        for turn in range(60):
            serve(cache, 1000 + turn, 4, hint, "a")
            num_found[-1] += found(cache, turn % 5, 4, "b")
            serve(cache, turn % 5, 4, None, "b")
    assert num_found[0] >= 0.9 * num_found[1] > 100


def test_tenants_with_quotas_share_the_bound_of_the_pool() -> None:
    names = "abcd"
    cache = CacheManager(16, SIZE, quotas={name: Quota() for name in names})
    for number, name in enumerate(names):
        serve(cache, number, 4, PIN, name)
    for _ in range(5):
        serve(cache, 10, 2, None, "e")
        serve(cache, 11, 2, None, "e")
    assert found(cache, 10, 2, "e") == found(cache, 11, 2, "e") == 2


@pytest.mark.parametrize("eviction", sorted(POLICIES))
def test_a_policy_learns_of_uses_that_a_hint_brought(eviction: str) -> None:
    """What was pinned, and used often, is worth as much to the policy as without a hint."""
    num_found = []
    for hint in (None, PIN):
        cache = CacheManager(16, SIZE, eviction=eviction)
        for _ in range(10):
            serve(cache, 1, 4, hint)
        serve(cache, 2, 4, hint)
        for number in range(3, 7):
            serve(cache, number, 4)
        num_found.append(found(cache, 1, 4))
    assert num_found[1] >= num_found[0]


def test_what_was_set_apart_and_is_used_again_is_the_policys() -> None:
    cache = CacheManager(16, SIZE)
    serve(cache, 1, 4, SESSION)
    flood(cache)
    serve(cache, 1, 4, SESSION)
    for number in range(100, 103):
        serve(cache, number, 4)
    assert [found(cache, number, 4) for number in (1, 100, 101, 102)] == [4, 4, 4, 4]


def test_one_tenants_sessions_go_in_the_order_of_their_last_use_beside_anothers() -> None:
    cache = CacheManager(16, SIZE)
    serve(cache, 1, 2, SESSION, "a")
    serve(cache, 2, 2, SESSION, "b")
    serve(cache, 1, 2, SESSION, "a")
    cache.free(begin(cache, tokens_of(3, 14)))
    assert (found(cache, 1, 2, "a"), found(cache, 2, 2, "b")) == (2, 0)


def test_what_a_preempted_sequence_computed_again_was_not_found() -> None:
    cache = CacheManager(8, SIZE)
    serve(cache, 1, 2)
    tokens = tokens_of(1, 2) + tokens_of(2, 2)
    table = begin(cache, tokens)
    assert table.num_found == 2
    cache.free(table)
    cache.forget()
    cache.acquire(table, tokens, cache.match(table, tokens), counted=False)
    assert table.num_found == 0
    assert cache.reserve(table, 0, len(tokens)) is not None
    cache.commit(table, tokens, len(tokens))
    cache.free(table, NONE)
    serve(cache, 3, 4)
    serve(cache, 4, 4)
    assert (found(cache, 1, 2), found(cache, 3, 4)) == (0, 4)


def test_what_none_found_is_not_of_what_goes_first() -> None:
    cache = CacheManager(8, SIZE)
    serve(cache, 9, 2)
    serve(cache, 1, 2)
    cache.free(begin(cache, tokens_of(1, 2) + tokens_of(2, 2)), NONE)
    serve(cache, 3, 2)
    serve(cache, 4, 4)
    assert (found(cache, 1, 2), found(cache, 9, 2)) == (2, 0)


def test_forgotten_blocks_keep_no_hint() -> None:
    cache = CacheManager(16, SIZE)
    serve(cache, 1, 4, PIN)
    cache.forget()
    cache.check_integrity()
    serve(cache, 1, 4)
    flood(cache)
    assert found(cache, 1, 4) == 0


def test_a_pinned_window_is_found_where_its_turn_ended() -> None:
    cache = CacheManager(16, SIZE, windows=[AttentionWindow(4)])
    tokens = tokens_of(1, 6)
    table = begin(cache, tokens)
    cache.free(table, PIN)
    cache.check_integrity()
    flood(cache)
    assert cache.match(cache.open(), [*tokens, -1]).num_tokens == len(tokens)


@pytest.mark.parametrize("hint", ["pinned", "", 1, True])
def test_another_hint_is_refused_and_nothing_is_freed(hint: object) -> None:
    cache = CacheManager(16, SIZE)
    table = begin(cache, tokens_of(1, 4))
    with pytest.raises(InvalidOptionError, match="hint"):
        cache.free(table, hint)  # type: ignore[arg-type]
    cache.check_integrity()
    cache.free(table)


def test_pools_too_small_for_a_quarter_keep_nothing_and_lose_nothing() -> None:
    cache = CacheManager(3, SIZE)
    for number in range(6):
        serve(cache, number, 2, PIN)
        assert found(cache, number, 2) == 2
