"""The optimum, beside every way there is to keep blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import CacheManager
from pagoda.cache.evictions import POLICIES
from pagoda.replay.cache_replay import replay_cache
from pagoda.replay.clairvoyant import Future, References
from pagoda.replay.trace import TracedRequest
from replay.traces import UNIT, asked, prefixes


def future_of(requests: Sequence[TracedRequest], block_size: int = UNIT) -> Future:
    references = References(block_size, whole_blocks=True)
    for request in requests:
        references.add(request)
    return references.future()


def best(walks: Sequence[Sequence[int]], num_blocks: int) -> int:
    """Blocks found at most: after each request everything that could be kept is tried."""

    @cache
    def found_from(at: int, kept: frozenset[int]) -> int:
        if at == len(walks):
            return 0
        found = 0
        for name in walks[at]:
            if name not in kept:
                break
            found += 1
        there = sorted(kept | set(walks[at]))
        size = min(num_blocks, len(there))
        choices = map(frozenset, combinations(there, size))
        return found + max(found_from(at + 1, choice) for choice in choices)

    return found_from(0, frozenset())


walks_of_a_tree = st.lists(
    st.lists(st.integers(1, 2), min_size=1, max_size=3), min_size=1, max_size=6
).map(lambda words: [named(word) for word in words])


def named(word: list[int]) -> list[int]:
    names, name = [], 0
    for letter in word:
        name = name * 2 + letter
        names.append(name)
    return names


@given(walks_of_a_tree, st.integers(3, 4))
def test_no_way_to_keep_blocks_finds_more(walks: list[list[int]], num_blocks: int) -> None:
    # With a token behind them whole prompts are found; without, one token less.
    requests = [asked(walk, rest=1) for walk in walks]
    num_tokens = sum(request.num_prompt_tokens for request in requests)
    told = future_of(requests)
    # A request that needs more blocks than there are is left out of both.
    if all(len(walk) < num_blocks for walk in walks):
        assert told.hit_rate(num_blocks) == pytest.approx(
            best(walks, num_blocks) * UNIT / num_tokens
        )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block_size", [2, UNIT, 2 * UNIT])
def test_it_bounds_every_policy(policy: str, block_size: int) -> None:
    requests = [asked(walk, rest=rest % 3) for rest, walk in enumerate(prefixes(7, 150))]
    future = future_of(requests, block_size)
    rates = []
    for num_blocks in (12, 20, 40, 10_000):
        found = replay_cache(requests, CacheManager(num_blocks, block_size, eviction=policy))
        assert found.num_refused == 0
        rates.append(future.hit_rate(num_blocks))
        assert found.hit_rate <= rates[-1] + 1e-12
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(future.hit_rate(None))
    roomy = replay_cache(requests, CacheManager(10_000, block_size))
    assert roomy.hit_rate == pytest.approx(rates[-1])


def test_tenants_are_apart_and_answers_are_left_behind() -> None:
    first = asked([1], output=8, answer_ids=[2, 3])
    then = [asked([1, 2, 3, 4], tenant=tenant) for tenant in ("", "other")]
    assert future_of([first, *then]).hit_rate(10) == pytest.approx(12 / 36)


def test_requests_that_do_not_fit_are_left_out_and_leave_nothing() -> None:
    requests = [asked([1, 2, 3]), asked([1]), asked([1])]
    assert replay_cache(requests, CacheManager(2, UNIT)).refused.tolist() == [0]
    for num_blocks in (2, None):
        assert future_of(requests).hit_rate(num_blocks, [0]) == pytest.approx(3 / 8)


def test_what_a_refused_request_would_use_is_not_worth_keeping() -> None:
    """D is used by one that is refused, before the others are used again."""
    walks = [[1, 2, 3], [4], [4, 5, 6, 7, 8], [1, 2, 3]]
    requests = [asked(walk, rest=1) for walk in walks]
    outcome = replay_cache(requests, CacheManager(4, UNIT))
    assert list(outcome.refused) == [2]
    served = [walk for place, walk in enumerate(walks) if place != 2]
    told = future_of(requests).hit_rate(3, outcome.refused)
    assert told == pytest.approx(best(served, 3) * UNIT / outcome.num_prompt_tokens)
    assert told == future_of([asked(walk, rest=1) for walk in served]).hit_rate(3)


def test_a_trace_of_nothing() -> None:
    assert future_of([]).hit_rate(5) == 0.0
