"""Blocks and block-seconds of each tenant, against a count by hand."""

import pytest

from pagoda.cache import CacheManager


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> CacheManager:
    return CacheManager(8, 2, clock=clock)


def serve(
    cache: CacheManager, clock: Clock, tenant: str, tokens: list[int], seconds: float
) -> None:
    """Hold what a sequence of these tokens needs for so long, and let go of it."""
    table = cache.open(tenant=tenant)
    match = cache.match(table, tokens)
    cache.acquire(table, tokens, match)
    assert cache.reserve(table, match.num_tokens, len(tokens)) is not None
    cache.commit(table, tokens, len(tokens))
    clock.now += seconds
    cache.free(table)
    cache.check_integrity()


def figures(cache: CacheManager, tenant: str) -> tuple[int, int, float, float]:
    holding = cache.holdings()[tenant]
    return (
        holding.num_held,
        holding.num_cached,
        holding.held_block_seconds,
        holding.cached_block_seconds,
    )


def test_a_block_is_held_and_then_cached(cache: CacheManager, clock: Clock) -> None:
    serve(cache, clock, "a", [1, 2, 3, 4, 5], 10)
    assert figures(cache, "a") == (0, 2, 30, 0)
    clock.now += 7
    assert figures(cache, "a") == (0, 2, 30, 14)


def test_what_two_sequences_share_counts_once(cache: CacheManager, clock: Clock) -> None:
    serve(cache, clock, "a", [1, 2, 3, 4, 5], 0)
    tables = [cache.open(tenant="a") for _ in range(2)]
    for table in tables:
        cache.acquire(table, [1, 2, 3, 4, 5], cache.match(table, [1, 2, 3, 4, 5]))
    clock.now += 3
    assert figures(cache, "a") == (2, 0, 6, 0)
    cache.free(tables[0])
    clock.now += 3
    assert figures(cache, "a") == (2, 0, 12, 0)
    cache.free(tables[1])
    assert figures(cache, "a") == (0, 2, 12, 0)


def test_a_fork_shares_until_it_writes(cache: CacheManager, clock: Clock) -> None:
    table = cache.open(tenant="a")
    cache.acquire(table, [1, 2, 3], cache.match(table, [1, 2, 3]))
    cache.reserve(table, 0, 3)
    cache.commit(table, [1, 2, 3], 3)
    fork = cache.fork(table, 3)
    clock.now += 1
    assert figures(cache, "a") == (2, 0, 2, 0)
    assert cache.reserve(fork, 3, 4) is not None
    clock.now += 1
    assert figures(cache, "a") == (3, 0, 5, 0)


def test_what_is_evicted_goes_to_whom_it_was_evicted_for(cache: CacheManager, clock: Clock) -> None:
    serve(cache, clock, "a", list(range(16)), 1)
    assert figures(cache, "a") == (0, 8, 8, 0)
    clock.now += 1
    serve(cache, clock, "b", list(range(6)), 2)
    assert figures(cache, "a") == (0, 5, 8, 8 + 2 * 5)
    assert figures(cache, "b") == (0, 3, 6, 0)


@pytest.mark.parametrize("order", ["forget", "reset"])
def test_what_is_forgotten_is_nobodys_and_what_was_had_stays(
    cache: CacheManager, clock: Clock, order: str
) -> None:
    serve(cache, clock, "a", [1, 2, 3, 4], 5)
    getattr(cache, order)()
    clock.now += 5
    cache.check_integrity()
    assert figures(cache, "a") == (0, 0, 10, 0)


def test_nothing_is_counted_of_tenants_that_had_no_block(cache: CacheManager) -> None:
    cache.open(tenant="a")
    assert cache.holdings() == {}
