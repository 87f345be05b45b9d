"""Floors and caps of tenants: what is theirs, and what others may do with it meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pagoda.cache import BlockTable, CacheManager
from pagoda.cache.evictions import POLICIES
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.quota import Quota, require_quotas
from pagoda.errors import InvalidOptionError

SIZE = 2


def cache_of(num_blocks: int, eviction: str = "lru", **quotas: Quota) -> CacheManager:
    return CacheManager(num_blocks, SIZE, eviction=eviction, quotas=quotas)


def tokens_of(number: int, num_blocks: int) -> list[int]:
    return [1000 * number + token for token in range(num_blocks * SIZE)]


def take(cache: CacheManager, tenant: str, number: int, num_blocks: int) -> BlockTable | None:
    """A sequence of a tenant with so many full blocks, all of them its own; None: too few."""
    table, tokens = cache.open(tenant=tenant), tokens_of(number, num_blocks)
    cache.acquire(table, tokens, cache.match(table, []))
    if cache.reserve(table, 0, len(tokens)) is None:
        cache.free(table)
        return None
    cache.commit(table, tokens, len(tokens))
    cache.check_integrity()
    return table


def leave(cache: CacheManager, tenant: str, number: int, num_blocks: int) -> None:
    """Blocks that stay cached once their sequence has ended."""
    table = take(cache, tenant, number, num_blocks)
    assert table is not None
    cache.free(table)
    cache.check_integrity()


def found(cache: CacheManager, tenant: str, number: int, num_blocks: int) -> int:
    tokens = [*tokens_of(number, num_blocks), -1]
    return cache.match(cache.open(tenant=tenant), tokens).num_tokens // SIZE


def cached(cache: CacheManager) -> Mapping[str, int]:
    return {tenant: holding.num_cached for tenant, holding in cache.holdings().items()}


@pytest.mark.parametrize("eviction", POLICIES)
def test_what_a_floor_keeps_is_evicted_by_nobody_else(eviction: str) -> None:
    cache = cache_of(10, eviction, b=Quota(floor=4))
    leave(cache, "b", 0, 6)
    for number in range(1, 9):
        leave(cache, "a", number, 3)
    assert cached(cache)["b"] == 4
    assert found(cache, "b", 0, 6) >= (4 if eviction == "lru" else 0)


def test_the_tenant_itself_evicts_what_its_floor_keeps() -> None:
    cache = cache_of(6, b=Quota(floor=4))
    leave(cache, "b", 0, 4)
    held = take(cache, "a", 1, 2)
    assert held is not None
    leave(cache, "b", 2, 4)
    assert (found(cache, "b", 0, 4), found(cache, "b", 2, 4)) == (0, 4)


def test_others_cache_in_what_a_tenant_has_not_taken_and_never_hold_it() -> None:
    cache = cache_of(10, b=Quota(floor=4))
    leave(cache, "a", 0, 6)
    leave(cache, "a", 1, 4)
    assert cached(cache)["a"] == 10
    held = take(cache, "a", 2, 6)
    assert held is not None
    assert cache.allowance(held).num_blocks == 0
    assert take(cache, "a", 3, 1) is None
    assert take(cache, "c", 3, 1) is None
    own = take(cache, "b", 4, 4)
    assert own is not None
    assert cache.allowance(own).num_blocks == 0


def test_whoever_is_at_its_cap_gives_up_its_own() -> None:
    cache = cache_of(10, b=Quota(cap=4))
    leave(cache, "a", 0, 4)
    leave(cache, "b", 1, 3)
    leave(cache, "b", 2, 3)
    assert cached(cache) == {"a": 4, "b": 4}
    assert (found(cache, "a", 0, 4), found(cache, "b", 2, 3)) == (4, 3)
    assert take(cache, "b", 3, 5) is None
    assert take(cache, "a", 3, 6) is not None


def test_a_block_goes_that_nobody_has_wanted_for_longest() -> None:
    cache = cache_of(9, b=Quota(floor=1), c=Quota(floor=1))
    for number, tenant in enumerate("bac"):
        leave(cache, tenant, number, 3)
    assert take(cache, "d", 3, 4) is not None
    assert cached(cache) == {"a": 1, "b": 1, "c": 3, "d": 0}


def test_a_hit_counts_for_the_floor() -> None:
    """Blocks that are held are of the floor as well: there is nothing left to keep of others."""
    cache = cache_of(8, b=Quota(floor=3))
    leave(cache, "b", 0, 5)
    table, tokens = cache.open(tenant="b"), tokens_of(0, 3)
    cache.acquire(table, tokens, cache.match(table, [*tokens, -1]))
    assert cache.allowance(cache.open(tenant="a")).num_blocks == 5
    assert take(cache, "a", 1, 5) is not None
    assert cached(cache)["b"] == 0


def test_what_is_spoken_for_fills_floors_and_caps() -> None:
    cache = cache_of(20, b=Quota(floor=6, cap=8))
    allowance = cache.allowance(cache.open(tenant="a"), {"b": 2, "a": 3})
    assert (allowance.in_pool, allowance.within_cap, allowance.num_due) == (20 - 5 - 4, None, 0)
    allowance = cache.allowance(cache.open(tenant="b"), {"b": 2, "a": 3})
    assert (allowance.in_pool, allowance.within_cap, allowance.num_due) == (15, 6, 4)
    assert allowance.num_blocks == 6
    assert allowance.due_alone().num_blocks == 4


def test_what_helps_whom() -> None:
    cache = cache_of(20, b=Quota(floor=4), c=Quota(cap=6))
    tables = {tenant: take(cache, tenant, number, 4) for number, tenant in enumerate("abc")}
    a, b, c = (table for table in tables.values() if table is not None)
    assert not cache.helps(a, "b"), "b would be due what it drops"
    assert cache.helps(a, "c")
    assert cache.helps(b, "b")
    assert cache.helps(b, "a")
    assert not cache.helps(c, "a"), "its cap leaves c 2 more, the pool 8"
    assert cache.helps(c, "c")
    assert take(cache, "a", 3, 7) is not None
    assert cache.helps(c, "a"), "the pool leaves it less than its cap"
    assert take(cache, "b", 4, 1) is not None
    assert cache.helps(a, "b")


def test_nothing_is_spoken_for_beyond_a_cap() -> None:
    cache = cache_of(40, b=Quota(cap=8))
    assert take(cache, "b", 0, 6) is not None
    assert cache.allowance(cache.open(tenant="a"), {"b": 20}).in_pool == 40 - 8


def test_quotas_outlast_a_reset() -> None:
    cache = cache_of(6, b=Quota(floor=3))
    assert take(cache, "a", 0, 3) is not None
    cache.reset()
    cache.check_integrity()
    assert take(cache, "a", 1, 4) is None
    assert take(cache, "a", 1, 3) is not None


@pytest.mark.parametrize(
    ("floor", "cap", "named"),
    [
        (-1, None, "floor"),
        (1.5, None, "floor"),
        (True, None, "floor"),
        (0, 0, "cap"),
        (4, 3, "cap"),
    ],
)
def test_a_quota_out_of_range_is_refused(floor: int, cap: int | None, named: str) -> None:
    with pytest.raises(InvalidOptionError, match=named):
        Quota(floor, cap)


@pytest.mark.parametrize(
    ("quotas", "named"),
    [
        ({"b": Quota(6), "c": Quota(5)}, "floor"),
        ({"b": Quota(cap=2)}, "cap"),
        ({"b": 4}, "quotas"),
        ({3: Quota()}, "quotas"),
        ([], "quotas"),
    ],
)
def test_quotas_that_leave_no_room_are_refused(quotas: object, named: str) -> None:
    with pytest.raises(InvalidOptionError, match=named):
        require_quotas(quotas, 12, 3)  # type: ignore[arg-type]


def test_floors_may_leave_just_one_longest_request() -> None:
    quotas = {"b": Quota(6), "c": Quota(3, 3)}
    require_quotas(quotas, 12, 3)
    cache = cache_of(12, **quotas)
    assert take(cache, "a", 0, 3) is not None
    assert take(cache, "a", 1, 1) is None


def test_a_policy_that_is_given_serves_no_quotas() -> None:
    with pytest.raises(InvalidOptionError, match="eviction"):
        CacheManager(8, SIZE, eviction=LRU(), quotas={"b": Quota(1)})
