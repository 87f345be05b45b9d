"""What other sizes of a cache would find, by hand and beside full replays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.cache import EVICTION_POLICIES, CacheManager
from pagoda.cache.curve import MULTIPLES, HitRateCurve
from pagoda.cache.evictions import eviction_policy
from pagoda.cache.match import UNREAD
from pagoda.cache.shadow import LRUShadow, PolicyShadow, shadow_of
from pagoda.cache.watcher import CacheWatcher
from pagoda.errors import InvalidOptionError
from pagoda.replay.cache_replay import replay_cache
from pagoda.replay.find_trace import find_trace
from pagoda.replay.found import Found

SIZE = 4
TRACE = find_trace("synthetic:chat?requests=120&seed=5&system=100&message=40&answer=60")
A, B, C = (list(range(start, start + 40)) for start in (100, 200, 300))


class Watched:
    """A cache with its curve, and requests that come one after another."""

    def __init__(self, num_blocks: int, policy: str = "lru", **options: float) -> None:
        self.curve = HitRateCurve(num_blocks, SIZE, policy, **options)  # type: ignore[arg-type]
        self.cache = CacheManager(num_blocks, SIZE, eviction=policy, watchers=[self.curve])

    def ask(self, prompt: Sequence[int], answer: Sequence[int] = ()) -> int:
        """Tokens found of the prompt."""
        table = self.cache.open()
        match = self.cache.match(table, prompt)
        self.cache.acquire(table, prompt, match)
        assert self.cache.reserve(table, match.num_tokens, len(prompt) + len(answer)) is not None
        tokens = [*prompt, *answer]
        self.cache.commit(table, tokens, len(tokens))
        self.cache.free(table)
        return match.num_tokens

    def rates(self, policy: str = "lru") -> dict[float, float | None]:
        return {p.multiple: p.hit_rate for p in self.curve.points() if p.policy == policy}


def test_it_is_a_watcher() -> None:
    assert isinstance(HitRateCurve(1, 1), CacheWatcher)


def test_nothing_was_looked_up() -> None:
    assert set(Watched(8).rates().values()) == {None}


def test_each_size_finds_what_fits_into_it() -> None:
    watched = Watched(8, half_life=math.inf)
    prompts = (A[:17], B[:17], A[:17], B[:17], C[:17], A[:17])
    found = sum(watched.ask(prompt) for prompt in prompts)
    # Four blocks each. Half the pool has the last one alone, twice the pool has all.
    assert watched.rates() == {
        0.25: 0.0,
        0.5: 0.0,
        1.0: pytest.approx(found / (6 * 17)),
        2.0: pytest.approx(3 * 16 / (6 * 17)),
        4.0: pytest.approx(3 * 16 / (6 * 17)),
        8.0: pytest.approx(3 * 16 / (6 * 17)),
    }
    assert [point.num_blocks for point in watched.curve.points()] == [2, 4, 8, 16, 32, 64]
    assert watched.curve.num_requests == 6
    assert watched.curve.num_tokens == 6 * 17
    assert watched.curve.num_sampled_tokens == 6 * 16


def test_an_answer_is_found_by_the_next_turn() -> None:
    watched = Watched(6, half_life=math.inf)
    watched.ask(A[:8], answer=A[8:16])
    watched.ask(B[:20])
    watched.ask(A[:17])
    assert watched.rates()[0.5] == 0.0
    assert watched.rates()[2.0] == pytest.approx(16 / 45)


def test_what_ends_last_is_used_last() -> None:
    watched = Watched(8, half_life=math.inf)
    early = watched.cache.open()
    tokens = A[:16]
    watched.cache.acquire(early, tokens, watched.cache.match(early, tokens))
    watched.cache.reserve(early, 0, 16)
    watched.cache.commit(early, tokens, 16)
    watched.ask(B[:16])
    watched.cache.free(early)
    watched.ask(C[:16])  # twice the pool has room for all; the pool gives up B
    assert watched.ask(A[:17]) == 16
    assert watched.rates()[1.0] == pytest.approx(16 / 65)
    assert watched.rates()[0.5] == 0.0


def test_a_shadow_of_the_size_and_policy_of_the_cache_is_the_cache() -> None:
    trace = list(find_trace("synthetic:chat?requests=150&seed=3"))
    curve = HitRateCurve(400, 16, "lru", half_life=math.inf)
    [other] = [point for point in curve.points() if point.multiple == 1.0]
    found = replay_cache(trace, CacheManager(400, 16, watchers=[curve]))
    [own] = [point for point in curve.points() if point.multiple == 1.0]
    assert other.hit_rate is None
    assert own.hit_rate == pytest.approx(found.hit_rate)


@pytest.fixture(scope="module")
def full_replay() -> Callable[[int, str], Found]:
    """What `TRACE` finds by so many blocks and a policy, once: all policies ask for LRU's."""
    return cache(lambda num, policy: replay_cache(TRACE, CacheManager(num, 16, eviction=policy)))


@pytest.mark.parametrize("policy", sorted(EVICTION_POLICIES))
def test_followed_whole_it_is_what_full_replays_find(
    policy: str, full_replay: Callable[[int, str], Found]
) -> None:
    curve = HitRateCurve(240, 16, policy, half_life=math.inf)
    replay_cache(TRACE, CacheManager(240, 16, eviction=policy, watchers=[curve]))
    assert curve.sampling_rate == 1
    for point in curve.points():
        if point.multiple < 0.5:
            continue  # too small for some of the requests, which a replay refuses
        found = full_replay(point.num_blocks, point.policy)
        assert not found.num_refused
        assert point.hit_rate == pytest.approx(found.hit_rate, abs=0.01), point


@pytest.mark.parametrize(
    "trace",
    [
        "synthetic:chat?requests=250&seed=1",
        "synthetic:rag?requests=120&seed=1&documents=100&document=320",
        "synthetic:agents?requests=100&seed=1&system=800&message=300",
        "synthetic:system?requests=120&seed=1&system=500",
    ],
)
def test_a_sample_is_within_two_points_of_full_replays(trace: str) -> None:
    requests = list(find_trace(trace))
    curve = HitRateCurve(600, 32, sample=150, half_life=math.inf)
    replay_cache(requests, CacheManager(600, 32, watchers=[curve]))
    assert curve.sampling_rate == 0.25
    assert curve.num_sampled_tokens < 0.3 * curve.num_tokens
    for point in curve.points():
        found = replay_cache(requests, CacheManager(point.num_blocks, 32))
        if not found.num_refused:
            assert point.hit_rate == pytest.approx(found.hit_rate, abs=0.02), point


def test_what_everybody_shares_adds_no_chance() -> None:
    """One block that all prompts begin with is in the sample or not: the curve is the same."""
    for first in range(20):
        watched = Watched(400, sample=40, half_life=math.inf)
        for number in range(50):
            watched.ask([first] * 4 + [1000 + 50 * first + number])
        rates = watched.rates()
        assert rates[1.0] == pytest.approx(49 * 4 / (50 * 5))
        assert set(rates.values()) == {rates[1.0]}


def test_later_lookups_count_more() -> None:
    watched = Watched(8, half_life=0.25)  # 8 tokens
    for _ in range(3):
        watched.ask(A[:8])
    before = watched.rates()[1.0]
    for start in range(5):
        watched.ask([start + 1] * 8)
    after = watched.rates()[1.0]
    assert before == pytest.approx((0 / 4 + 7 / 2 + 7) / (8 / 4 + 8 / 2 + 8))
    assert after is not None
    assert after < 0.03


def test_both_policies_are_told_apart() -> None:
    watched = Watched(8, "slru")
    points = watched.curve.points()
    assert [(p.policy, p.multiple) for p in points] == [
        (policy, multiple) for policy in ("slru", "lru") for multiple in MULTIPLES
    ]
    # A was used twice; a run of others passes it by under SLRU and pushes it out under LRU.
    for prompt in (A[:9], A[:9], [1] * 24, [2] * 24, A[:9]):
        watched.ask(prompt)
    own, lru = watched.rates("slru")[1.0], watched.rates("lru")[1.0]
    assert own is not None
    assert lru is not None
    assert own > lru + 0.05


def test_what_is_not_looked_for_does_not_count() -> None:
    watched = Watched(8)
    table = watched.cache.open()
    watched.cache.acquire(table, A[:8], UNREAD)
    watched.cache.reserve(table, 0, 8)
    watched.cache.commit(table, A[:8], 8)
    watched.cache.free(table)
    assert watched.curve.num_requests == 0
    watched.ask(A[:9])
    assert set(watched.rates().values()) == {8 / 9}


def test_what_is_forgotten_by_order_is_found_by_no_size() -> None:
    watched = Watched(8, half_life=math.inf)
    watched.ask(A[:9])
    watched.cache.forget()
    watched.ask(A[:9])
    assert set(watched.rates().values()) == {0.0}
    watched.ask(A[:9])
    assert set(watched.rates().values()) == {8 / 27}


def test_memory_does_not_grow_with_the_pool_or_the_traffic() -> None:
    curve = HitRateCurve(1_000_000, 16, "slru", sample=64)
    replay_cache(
        find_trace("synthetic:chat?requests=300&seed=1&system=0"),
        CacheManager(100_000, 16, watchers=[curve]),
    )
    assert sum(len(shadow) for _, shadow in curve._shadows) <= 2 * 64 * sum(MULTIPLES)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"num_blocks": 0}, "num_blocks"),
        ({"block_size": 0}, "block_size"),
        ({"sample": 0}, "sample"),
        ({"half_life": 0.0}, "half_life"),
        ({"half_life": math.nan}, "half_life"),
        ({"policy": "clock"}, "eviction"),
        ({"policy": eviction_policy("lru", 1)}, "eviction"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        HitRateCurve(**{"num_blocks": 8, "block_size": 4, **options})  # type: ignore[arg-type]
    assert refused.value.field == field


# ---- a shadow --------------------------------------------------------------------------------


def paths(*texts: str) -> list[list[bytes]]:
    return [[text[: end + 1].encode() for end in range(len(text))] for text in texts]


@pytest.mark.parametrize("policy", sorted(EVICTION_POLICIES.keys() - {"gdsf"}))  # heads cost least
def test_a_tail_goes_before_its_head(policy: str) -> None:
    shadow = shadow_of(5, policy)
    first, second = paths("abcde", "abxy")
    assert [shadow.look_up(first), shadow.look_up(second)] == [0, 2]
    assert shadow.look_up(first) == 3


@pytest.mark.parametrize("policy", sorted(EVICTION_POLICIES))
def test_a_sequence_longer_than_the_shadow_leaves_its_head(policy: str) -> None:
    shadow = shadow_of(3, policy)
    [path] = paths("abcde")
    assert [shadow.look_up(path), shadow.look_up(path), len(shadow)] == [0, 3, 3]


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(sorted(EVICTION_POLICIES)),
    num_blocks=st.integers(1, 6),
    calls=st.lists(
        st.tuples(st.sampled_from(["look_up", "renew", "clear"]), st.text("ab", max_size=7)),
        max_size=60,
    ),
)
def test_a_shadow_stays_whole(policy: str, num_blocks: int, calls: list[tuple[str, str]]) -> None:
    shadow = PolicyShadow(num_blocks, partial(eviction_policy, policy, num_blocks))
    for name, text in calls:
        [path] = paths(text)
        if name == "clear":
            shadow.clear()
        else:
            getattr(shadow, name)(path)
        assert len(shadow) + len(shadow._blank) == num_blocks
        assert len(shadow._policy) == len(shadow)
        assert set(shadow._policy) == set(shadow._ids.values())
        assert all(shadow._hashes[block_id] == key for key, block_id in shadow._ids.items())


@settings(max_examples=100, deadline=None)
@given(
    st.integers(7, 12),
    st.lists(
        st.tuples(st.sampled_from(["look_up", "renew", "clear"]), st.text("abc", max_size=7)),
        max_size=60,
    ),
)
def test_the_order_of_hashes_is_what_the_policy_lru_makes(
    num_blocks: int, calls: list[tuple[str, str]]
) -> None:
    shadow = LRUShadow(num_blocks)
    plain = PolicyShadow(num_blocks, partial(eviction_policy, "lru", num_blocks))
    for name, text in calls:
        [path] = paths(text)
        arguments = () if name == "clear" else (path,)
        assert getattr(shadow, name)(*arguments) == getattr(plain, name)(*arguments)
        assert list(shadow._order) == [plain._hashes[block_id] for block_id in plain._policy]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=6), max_size=40), st.integers(6, 20))
def test_a_larger_lru_shadow_finds_no_less(texts: list[str], num_blocks: int) -> None:
    small, large = shadow_of(6, "lru"), shadow_of(num_blocks, "lru")
    for path in paths(*texts):
        assert small.look_up(path) <= large.look_up(path)
