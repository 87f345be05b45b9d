"""Tenants' shares of a tier of bounded bytes: whose frame goes for whose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from pagoda.tiers.disk import DiskTier
from pagoda.tiers.host import HostTier
from pagoda.tiers.names import digest_of, frame_name, is_frame_name, namespace_of, owner_of
from pagoda.tiers.namespace import Namespace
from pagoda.tiers.shares import Share, Shares, owner_tag
from pagoda.tiers.use_order import UseOrder

TIMEOUT_S = 10.0
FRAME_BYTES = 4096
NUM_FRAMES = 100
CAPACITY = NUM_FRAMES * FRAME_BYTES
BOB, CAROL = owner_tag("bob"), owner_tag("carol")
SHARES = {BOB: Share(floor=0.2, cap=0.3), CAROL: Share(floor=0.1)}
MakeTier = Callable[[], DiskTier | HostTier]


def name_of(number: int, owner: str = "") -> str:
    return frame_name(bytes(32), (number + 1).to_bytes(32, "big"), owner)


def store(tier: DiskTier | HostTier, owner: str, numbers: range) -> None:
    for number in numbers:
        tier.store([(name_of(number, owner), bytes(FRAME_BYTES))], TIMEOUT_S)


def num_held(tier: DiskTier | HostTier, owner: str, numbers: range) -> int:
    return sum(tier.holds([name_of(number, owner) for number in numbers], TIMEOUT_S))


def disk(path: Path) -> DiskTier:
    return DiskTier(path, CAPACITY, shares=SHARES)


@pytest.fixture(params=["disk", "host"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeTier:
    def make_tier() -> DiskTier | HostTier:
        is_disk = request.param == "disk"
        tier = disk(tmp_path) if is_disk else HostTier(CAPACITY, SHARES)
        request.addfinalizer(tier.close)
        return tier

    return make_tier


def test_a_flood_takes_nothing_that_is_within_a_floor(make: MakeTier) -> None:
    tier = make()
    store(tier, BOB, range(5))
    store(tier, CAROL, range(30))
    store(tier, "", range(300))
    assert num_held(tier, BOB, range(5)) == 5
    assert num_held(tier, CAROL, range(30)) == 10, "what is beyond a floor goes in its turn"
    assert num_held(tier, CAROL, range(20, 30)) == 10, "the oldest first"
    assert num_held(tier, "", range(300)) == NUM_FRAMES - 15, "nothing is left empty for bob"
    store(tier, BOB, range(5, 100))
    assert num_held(tier, BOB, range(100)) == 30, "his cap"
    assert num_held(tier, BOB, range(70, 100)) == 30
    assert tier.usage().num_bytes <= CAPACITY


def test_without_a_share_the_least_recently_used_goes_whoevers_it_is(make: MakeTier) -> None:
    tier = make()
    store(tier, "", range(40))
    store(tier, owner_tag("dan"), range(60))
    tier.holds([name_of(number) for number in range(10)], TIMEOUT_S)
    store(tier, owner_tag("dan"), range(60, 95))
    assert num_held(tier, "", range(10)) == 10
    assert num_held(tier, "", range(10, 40)) == 0


def test_a_tier_that_fills_keeps_the_labels_of_its_namespaces(make: MakeTier) -> None:
    labels = [Namespace({"weights": number}) for number in range(3)]
    names = [label.label_name for label in labels]
    tier = make()
    store(tier, "", range(NUM_FRAMES))
    for label in labels:
        tier.store([(label.label_name, label.label)], TIMEOUT_S)
    assert tier.usage().num_bytes <= CAPACITY
    store(tier, "", range(NUM_FRAMES, 3 * NUM_FRAMES))
    store(tier, BOB, range(100))
    assert tier.holds(names, TIMEOUT_S) == [True] * 3
    assert tier.usage().num_bytes <= CAPACITY


def test_where_nothing_but_labels_is_left_they_make_room(make: MakeTier) -> None:
    tier = make()
    names = [Namespace({"weights": number}).label_name for number in range(NUM_FRAMES)]
    for name in names:
        tier.store([(name, bytes(FRAME_BYTES))], TIMEOUT_S)
    store(tier, "", range(1))
    assert tier.holds(names, TIMEOUT_S) == [False] + [True] * (NUM_FRAMES - 1)
    assert num_held(tier, "", range(1)) == 1
    store(tier, "", range(1, 2))
    assert num_held(tier, "", range(2)) == 1


def test_shares_outlive_a_restart(tmp_path: Path) -> None:
    first = disk(tmp_path)
    store(first, BOB, range(20))
    first.close()
    second = disk(tmp_path)
    assert second.wait_until_counted(TIMEOUT_S)
    store(second, "", range(200))
    assert num_held(second, BOB, range(20)) == 20
    second.close()


def test_what_goes_is_what_looking_at_all_frames_says() -> None:
    """Of frames of any size, in any order of use."""
    random = Random(7)
    owners = ["", BOB, CAROL]
    for _ in range(20):
        shares: Shares = {BOB: Share(random.random() / 3, 0.4), CAROL: Share(random.random() / 3)}
        order, plain = UseOrder(1000, shares), dict[str, int]()
        for number in range(300):
            name, size = name_of(number % 120, random.choice(owners)), random.randint(1, 60)
            if name in plain:
                order.use([name])
                plain[name] = plain.pop(name)
                continue
            while goes := order.next_to_go(name, size, 1000):
                assert goes == gone(plain, name, size, shares)
                assert order.drop(goes)
                del plain[goes]
            assert gone(plain, name, size, shares) is None
            order.put(name, size)
            plain[name] = size
            assert order.num_bytes == sum(plain.values()) <= 1000


def gone(plain: dict[str, int], name: str, size: int, shares: Shares) -> str | None:
    """The same by looking at all: `plain` has sizes, the least recently used first."""

    def bytes_of(owner: str) -> int:
        return sum(each for other, each in plain.items() if owner_of(other) == owner)

    taker = owner_of(name)
    own = [each for each in plain if owner_of(each) == taker]
    cap = shares[taker].cap if taker in shares else None
    if own and cap is not None and bytes_of(taker) + size > cap * 1000:
        return own[0]
    if not plain or sum(plain.values()) + size <= 1000:
        return None
    first: dict[str, str] = {}
    for each in plain:
        first.setdefault(owner_of(each), each)
    for each in plain:
        owner = owner_of(each)
        floor = shares[owner].floor * 1000 if owner in shares else 0
        is_oldest = first[owner] == each
        if is_oldest and (owner == taker or bytes_of(owner) - plain[each] >= floor):
            return each
    return next(iter(plain))


def test_a_name_tells_whose_it_is_and_nobody_by_name() -> None:
    plain, bobs = name_of(7), name_of(7, BOB)
    assert (owner_of(plain), owner_of(bobs)) == ("", BOB)
    assert is_frame_name(plain)
    assert is_frame_name(bobs)
    assert namespace_of(plain) == namespace_of(bobs)
    assert digest_of(plain) == digest_of(bobs)
    assert "bob" not in bobs
    assert not any(map(is_frame_name, (f"{plain}-", f"{plain}-{BOB[1:]}", f"{bobs}0", f"{bobs}-x")))
