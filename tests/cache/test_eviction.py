"""What every eviction policy must keep to; a new one is a row in `POLICIES`."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import LRU, EvictionPolicy

OPERATIONS = st.sampled_from(["add", "remove", "evict"])
POLICIES: dict[str, Callable[[], EvictionPolicy]] = {"lru": LRU}


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
@given(
    operations=st.lists(st.tuples(st.sampled_from(["add", "remove", "evict"]), st.integers(0, 9)))
)
def test_a_policy_holds_exactly_what_was_added(
    make: Callable[[], EvictionPolicy], operations: list[tuple[str, int]]
) -> None:
    policy, held = make(), set()
    for operation, block_id in operations:
        if operation == "add" and block_id not in held:
            policy.add(block_id)
            held.add(block_id)
        elif operation == "remove" and block_id in held:
            policy.remove(block_id)
            held.remove(block_id)
        elif operation == "evict" and held:
            held.remove(policy.evict())
        assert sorted(policy) == sorted(held)
        assert len(policy) == len(held)


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
def test_nothing_can_be_evicted_from_nothing(make: Callable[[], EvictionPolicy]) -> None:
    policy = make()
    with pytest.raises(KeyError):
        policy.evict()
    with pytest.raises(KeyError):
        policy.remove(3)


def test_lru_evicts_in_the_order_of_release() -> None:
    policy = LRU()
    for block_id in (3, 1, 2):
        policy.add(block_id)
    policy.remove(3)
    policy.add(3)
    assert [policy.evict() for _ in range(3)] == [1, 2, 3]
