"""What every tier promises: `TIERS` is the table, to which a tier adds its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import pytest

from pagoda.tiers.disk import DiskTier
from pagoda.tiers.host import HostTier
from pagoda.tiers.redis import RedisTier
from pagoda.tiers.s3 import S3Tier
from pagoda.tiers.s3_address import S3Address
from pagoda.tiers.tier import Tier, TierError, TierFault
from tiers.stores import BUCKET

TIMEOUT_S = 10.0
MAX_FRAME_BYTES = 5000
CAPACITY_BYTES = 8 * 8192
NAMES = [f"{number // 4:016x}-{number + 1:064x}" for number in range(8)]
FRAMES = [bytes([number + 1]) * (1000 + 500 * number) for number in range(8)]


@dataclass(frozen=True)
class Row:
    """How a tier is made for a test; those that outlive their process can be made once more."""

    make: Callable[[pytest.FixtureRequest], Tier]
    stays: bool = True
    is_bounded: bool = False
    marks: tuple[pytest.MarkDecorator, ...] = ()


def disk(request: pytest.FixtureRequest) -> Tier:
    path = request.getfixturevalue("tmp_path") / "kv"
    return DiskTier(path, CAPACITY_BYTES, max_frame_bytes=MAX_FRAME_BYTES)


def redis(request: pytest.FixtureRequest) -> Tier:
    server = request.getfixturevalue("redis_server")
    return RedisTier(server.url, MAX_FRAME_BYTES)


def s3(request: pytest.FixtureRequest) -> Tier:
    port = request.getfixturevalue("s3_server").port
    address = S3Address.parse(f"s3://{BUCKET}/here", endpoint=f"http://127.0.0.1:{port}")
    return S3Tier(address.open(), MAX_FRAME_BYTES)


TIERS = {
    "host": Row(lambda request: HostTier(CAPACITY_BYTES), stays=False, is_bounded=True),
    "disk": Row(disk, is_bounded=True),
    "redis": Row(redis, marks=(pytest.mark.redis,)),
    "s3": Row(s3),
}


def rows(chosen: Callable[[Row], bool]) -> pytest.MarkDecorator:
    """Tests each of those tiers."""
    params = [
        pytest.param(name, id=name, marks=row.marks) for name, row in TIERS.items() if chosen(row)
    ]
    return pytest.mark.parametrize("row", params)


ALL = rows(lambda row: True)


@pytest.fixture
def tier(row: str, request: pytest.FixtureRequest) -> Iterator[Tier]:
    made = TIERS[row].make(request)
    yield made
    made.close()


def load(tier: Tier, names: list[str]) -> list[bytes | None]:
    return [None if each is None else bytes(each) for each in tier.load(names, TIMEOUT_S)]


def store(tier: Tier, *numbers: int) -> None:
    tier.store([(NAMES[number], FRAMES[number]) for number in numbers], TIMEOUT_S)


def held(tier: Tier) -> list[int]:
    return [number for number, is_held in enumerate(tier.holds(NAMES, TIMEOUT_S)) if is_held]


@ALL
def test_the_life_of_frames(tier: Tier) -> None:
    assert tier.kind.isidentifier()
    assert held(tier) == []
    assert load(tier, NAMES) == [None] * 8
    assert list(tier.entries(TIMEOUT_S)) == []
    assert (tier.holds([], TIMEOUT_S), load(tier, [])) == ([], [])
    tier.store([], TIMEOUT_S)
    tier.remove(NAMES, TIMEOUT_S)
    store(tier, 1, 2, 3)
    store(tier, 5)
    assert held(tier) == [1, 2, 3, 5]
    assert load(tier, NAMES[:4]) == [None, *FRAMES[1:4]]
    assert load(tier, [NAMES[5], NAMES[1], NAMES[5]]) == [FRAMES[5], FRAMES[1], FRAMES[5]]
    entries = {entry.name: entry for entry in tier.entries(TIMEOUT_S)}
    assert {name: entry.num_bytes for name, entry in entries.items()} == {
        NAMES[number]: len(FRAMES[number]) for number in (1, 2, 3, 5)
    }
    tier.remove([NAMES[2], NAMES[0], NAMES[3]], TIMEOUT_S)
    assert held(tier) == [1, 5]
    tier.quarantine([NAMES[5], NAMES[6]], TIMEOUT_S)
    assert held(tier) == [1]
    assert load(tier, NAMES) == [None, FRAMES[1], *[None] * 6]
    assert [entry.name for entry in tier.entries(TIMEOUT_S)] == [NAMES[1]]


@ALL
def test_usage_counts_what_is_there(tier: Tier) -> None:
    store(tier, 0, 1, 2)
    usage = tier.usage()
    assert usage.num_frames == 3
    assert usage.num_bytes >= sum(map(len, FRAMES[:3]))
    assert usage.capacity_bytes is None or usage.capacity_bytes >= usage.num_bytes


@ALL
def test_a_frame_is_never_changed(tier: Tier) -> None:
    own = bytearray(FRAMES[1])
    tier.store([(NAMES[0], FRAMES[0]), (NAMES[1], own), (NAMES[2], memoryview(own))], TIMEOUT_S)
    own[:] = bytes(len(own))
    tier.store([(NAMES[0], FRAMES[3]), (NAMES[3], FRAMES[3])], TIMEOUT_S)
    assert load(tier, NAMES[:4]) == [FRAMES[0], FRAMES[1], FRAMES[1], FRAMES[3]]


@ALL
def test_a_load_that_is_broken_off_leaves_the_tier_well(tier: Tier) -> None:
    store(tier, *range(8))
    for num_taken in (0, 1, 3):
        loading = tier.load(NAMES, TIMEOUT_S)
        assert [bytes(each or b"") for each in islice(loading, num_taken)] == FRAMES[:num_taken]
        loading.close()  # type: ignore[attr-defined]
    assert load(tier, NAMES) == FRAMES


@ALL
def test_of_what_is_too_long_only_the_beginning_is_read(tier: Tier) -> None:
    long = bytes(3 * MAX_FRAME_BYTES)
    tier.store([(NAMES[0], long)], TIMEOUT_S)
    [found] = load(tier, NAMES[:1])
    assert found is None or len(found) > MAX_FRAME_BYTES
    if tier.kind != "host":  # nobody but the process itself writes there
        assert len(found or b"") <= MAX_FRAME_BYTES + 1


@ALL
def test_threads_meet(tier: Tier) -> None:
    def work(first: int) -> bool:
        order = [(first + number) % 8 for number in range(8)]
        for number in order:
            store(tier, number)
            found = load(tier, [NAMES[each] for each in order])
            pairs = zip(found, order, strict=True)
            if not all(each in (None, FRAMES[at]) for each, at in pairs):
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))
    assert load(tier, NAMES) == FRAMES


@ALL
def test_closing_twice_is_no_matter_and_nothing_comes_afterwards(tier: Tier) -> None:
    store(tier, 0)
    tier.close()
    tier.close()
    with suppress(TierError):
        assert load(tier, NAMES[:1]) == [None]


@rows(lambda row: row.stays)
def test_frames_outlive_the_one_who_stored_them(
    row: str, tier: Tier, request: pytest.FixtureRequest
) -> None:
    store(tier, 0, 3)
    tier.close()
    other = TIERS[row].make(request)
    try:
        assert held(other) == [0, 3]
        assert load(other, NAMES[:4]) == [FRAMES[0], None, None, FRAMES[3]]
    finally:
        other.close()


@rows(lambda row: row.is_bounded)
def test_what_was_used_least_recently_makes_room(tier: Tier) -> None:
    full = {f"{1:016x}-{number:064x}": bytes([number]) * 8000 for number in range(8)}
    names = list(full)
    tier.store(list(full.items())[:4], TIMEOUT_S)
    tier.store(list(full.items())[4:], TIMEOUT_S)
    assert tier.holds(names, TIMEOUT_S) == [True] * 8  # the first counts as the last used
    assert len(load(tier, names[4:6])) == 2
    more = {f"{2:016x}-{number:064x}": bytes([number]) * 8000 for number in range(3)}
    tier.store(list(more.items()), TIMEOUT_S)
    left = [entry.name for entry in tier.entries(TIMEOUT_S)]
    assert sorted(left) == sorted([*names[:2], names[2], names[4], names[5], *more])
    usage = tier.usage()
    assert usage.num_bytes <= (usage.capacity_bytes or 0) == CAPACITY_BYTES


@rows(lambda row: row.is_bounded)
def test_a_frame_that_can_never_fit_is_refused_and_costs_nothing(tier: Tier) -> None:
    store(tier, 0, 1)
    with pytest.raises(TierError) as caught:
        tier.store([(NAMES[2], bytes(CAPACITY_BYTES + 1))], TIMEOUT_S)
    assert caught.value.reason is TierFault.FULL
    assert held(tier) == [0, 1]
