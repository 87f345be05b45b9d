"""What every eviction policy must keep to; a new one is tested by its row in `POLICIES`."""

from collections.abc import Callable, Iterator
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import EVICTION_POLICIES, CacheManager, EvictionPolicy
from pagoda.cache.evictions import POLICIES, eviction_policy
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.evictions.slru import SegmentedLRU
from pagoda.cache.record import NO_BLOCK, BlockRecord
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.errors import InvalidOptionError

every_policy = pytest.mark.parametrize(
    "make", EVICTION_POLICIES.values(), ids=EVICTION_POLICIES.keys()
)
IN_ORDER = ["lru", "slru", "lfu"]
in_order = pytest.mark.parametrize("make", [POLICIES[name] for name in IN_ORDER], ids=IN_ORDER)
"""Policies whose order is fixed by what happened, and is told by iterating."""
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "hit", "renew", "forget", "evict"]), st.integers(0, 9)),
    max_size=60,
)


def publish(policy: EvictionPolicy, block_id: int, parent: int = NO_BLOCK) -> None:
    policy.publish(block_id, BlockRecord(sha256(bytes([block_id])).digest(), parent, 0))


@every_policy
@given(operations=OPERATIONS)
def test_a_policy_holds_exactly_what_was_added(
    make: Callable[[int], EvictionPolicy], operations: list[tuple[str, int]]
) -> None:
    policy, held, published = make(10), set(), set()
    for operation, block_id in operations:
        if operation == "add" and block_id not in held:
            if block_id not in published:
                publish(policy, block_id)
                published.add(block_id)
            policy.add(block_id)
            held.add(block_id)
        elif operation == "hit" and block_id in held:
            policy.hit(block_id)
            held.remove(block_id)
        elif operation == "renew" and block_id in held:
            policy.renew(block_id)
        elif operation == "forget":
            policy.forget(block_id)
            held.discard(block_id)
            published.discard(block_id)
        elif operation == "evict" and held:
            evicted = policy.evict()
            held.remove(evicted)
            published.remove(evicted)
        assert sorted(policy) == sorted(held)
        assert len(policy) == len(held)


@every_policy
def test_nothing_can_be_had_from_nothing(make: Callable[[int], EvictionPolicy]) -> None:
    policy = make(10)
    with pytest.raises(KeyError):
        policy.evict()
    with pytest.raises(KeyError):
        policy.hit(3)
    policy.forget(3)


@in_order
@given(operations=OPERATIONS)
def test_blocks_go_in_the_order_that_is_told(
    make: Callable[[int], EvictionPolicy], operations: list[tuple[str, int]]
) -> None:
    policy = make(10)
    for operation, block_id in operations:
        if operation == "add" and block_id not in set(policy):
            policy.add(block_id)
        elif operation == "hit" and block_id in set(policy):
            policy.hit(block_id)
        elif operation == "forget":
            policy.forget(block_id)
        elif operation == "evict" and len(policy):
            first = next(iter(policy))
            assert policy.evict() == first


@in_order
def test_what_is_renewed_is_the_last_of_those_like_it(
    make: Callable[[int], EvictionPolicy],
) -> None:
    policy = make(10)
    for block_id in (1, 2, 3):
        publish(policy, block_id)
        policy.add(block_id)
    policy.renew(1)
    assert [policy.evict() for _ in range(3)] == [2, 3, 1]


class Told(LRU):
    """Notes the hits that it is told of."""

    num_hits = 0

    def hit(self, block_id: int) -> None:
        self.num_hits += 1
        super().hit(block_id)


def test_ends_of_turns_are_renewed_and_not_used() -> None:
    policy = Told()
    windows = (FULL_ATTENTION, AttentionWindow(8))
    cache = CacheManager(60, 4, eviction=policy, windows=windows, under_way_tokens=8)
    table, tokens = cache.open(), list(range(48))
    cache.acquire(table, tokens[:16], cache.match(table, tokens[:16]))
    for start in range(0, 48, 8):
        assert cache.reserve(table, start, start + 8) is not None
        cache.commit(table, tokens, start + 8)
        cache.check_integrity()
    cache.free(table)
    cache.check_integrity()
    assert policy.num_hits == 0
    assert len(policy) > 0


@in_order
def test_what_was_used_once_goes_in_the_order_of_release(
    make: Callable[[int], EvictionPolicy],
) -> None:
    """So tails go before heads, which more prompts share."""
    policy = make(10)
    for block_id in (3, 1, 2):
        policy.add(block_id)
    assert [policy.evict() for _ in range(3)] == [3, 1, 2]


@in_order
def test_what_is_forgotten_has_no_past(make: Callable[[int], EvictionPolicy]) -> None:
    """The next content of the block is another, whatever was hit or evicted before."""
    policy, plain = make(10), make(10)
    for block_id in (1, 2, 3):
        policy.add(block_id)
        policy.hit(block_id)
    policy.forget(1)
    policy.add(2)
    policy.forget(2)
    policy.add(3)
    assert policy.evict() == 3
    for each in (policy, plain):
        for block_id in (3, 2, 1, 4):
            each.add(block_id)
    assert list(policy) == list(plain)


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_a_cache_lives_with_every_policy(name: str) -> None:
    cache = CacheManager(6, 2, eviction=name)
    for number in range(40):
        tokens = [*([0, 1, 2, 3] if number % 3 else [number, number]), number, 1, 2]
        table = cache.open()
        match = cache.match(table, tokens)
        cache.acquire(table, tokens, match)
        assert cache.reserve(table, match.num_tokens, len(tokens)) is not None
        cache.commit(table, tokens, len(tokens))
        if number % 7 == 0:
            cache.forget()
        cache.check_integrity()
        cache.free(table)
        cache.check_integrity()
    assert cache.num_free_blocks == 6


@every_policy
def test_no_block_is_looked_for_among_all(make: Callable[[int], EvictionPolicy]) -> None:
    """All are told once where all are forgotten."""
    policy, looks = make(6), list[str]()
    kind = type(policy)

    def look_through(self: EvictionPolicy) -> Iterator[int]:
        looks.append("all")
        return kind.__iter__(self)

    policy.__class__ = type("Watched", (kind,), {"__iter__": look_through})
    cache = CacheManager(6, 2, eviction=policy)
    for number in range(20):
        tokens, table = [number % 3, number % 5, 1, 2], cache.open()
        match = cache.match(table, tokens)
        cache.acquire(table, tokens, match)
        assert cache.reserve(table, match.num_tokens, len(tokens)) is not None
        cache.commit(table, tokens, len(tokens))
        cache.free(table)
    assert (len(policy), len(looks)) == (6, 0)
    cache.forget()
    assert (len(policy), len(looks)) == (0, 1)


@pytest.mark.parametrize("given_policy", ["fifo", "", None, 3, LRU])
def test_what_is_no_policy_is_refused(given_policy: object) -> None:
    with pytest.raises(InvalidOptionError, match="eviction"):
        eviction_policy(given_policy, 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="eviction"):
        CacheManager(4, 4, eviction=given_policy)  # type: ignore[arg-type]


def test_lru_forgets_a_hit_that_lies_back() -> None:
    policy = LRU()
    for block_id in (3, 1, 2):
        policy.add(block_id)
    policy.hit(3)
    policy.add(3)
    assert [policy.evict() for _ in range(3)] == [1, 2, 3]


def reused(policy: EvictionPolicy, *block_ids: int) -> None:
    for block_id in block_ids:
        policy.add(block_id)
        policy.hit(block_id)
        policy.add(block_id)


def test_slru_keeps_what_was_used_again_from_what_was_not() -> None:
    lru, slru = LRU(), SegmentedLRU()
    for policy in (lru, slru):
        policy.add(1)
        policy.add(2)
        reused(policy, 7)
        for block_id in (3, 4, 5):
            policy.add(block_id)
    assert [lru.evict() for _ in range(6)] == [1, 2, 7, 3, 4, 5]
    assert [slru.evict() for _ in range(6)] == [1, 2, 3, 4, 5, 7]


def test_slru_protects_no_more_than_a_share() -> None:
    policy = SegmentedLRU()
    reused(policy, *range(10))
    assert list(policy) == [0, 1, *range(2, 10)]
    policy.add(99)
    assert next(iter(policy)) == 0, "whoever was let down goes before the newcomer"
    assert set(policy._protected) == set(range(2, 10))
