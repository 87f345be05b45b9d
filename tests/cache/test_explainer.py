"""What is told of prefixes that were not found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.cache import AttentionWindow, CacheManager
from pagoda.cache.explainer import MissExplainer
from pagoda.cache.match import UNREAD
from pagoda.cache.miss import Cause, Miss
from pagoda.cache.origin import Origin
from pagoda.cache.watcher import CacheWatcher
from pagoda.cache.window import FULL_ATTENTION

SIZE = 4
A = list(range(100, 140))


class Explained:
    """A cache whose misses are explained, and its requests."""

    def __init__(self, num_blocks: int = 32, **options: object) -> None:
        self.now = 0.0
        self.misses = MissExplainer(num_blocks, SIZE, clock=lambda: self.now)
        self.cache = CacheManager(
            num_blocks,
            SIZE,
            watchers=(self.misses,),
            clock=lambda: self.now,
            **options,  # type: ignore[arg-type]
        )

    def ask(self, tokens: Sequence[int], **origin: str) -> Miss:
        """A request comes, is computed and ends; what it was told."""
        table = self.cache.open(**origin)
        match = self.cache.match(table, tokens)
        lookup = self.cache.acquire(table, tokens, match)
        assert self.cache.reserve(table, match.num_tokens, len(tokens)) is not None
        self.cache.commit(table, tokens, len(tokens))
        self.cache.free(table)
        self.cache.check_integrity()
        assert lookup is not None
        assert lookup.miss is not None
        assert lookup.num_found == lookup.miss.position == match.num_tokens
        return lookup.miss


def test_it_is_a_watcher() -> None:
    assert isinstance(MissExplainer(1, 1), CacheWatcher)


def test_nothing_like_it_was_ever_seen() -> None:
    explained = Explained()
    miss = explained.ask(A[:10])
    assert (miss.cause, miss.position, miss.num_tokens) == (
        Cause.NEVER_SEEN,
        0,
        {Cause.NEVER_SEEN: 10},
    )
    other = explained.ask([7] * 9)
    assert (other.cause, other.divergence) == (Cause.NEVER_SEEN, None)


def test_what_follows_a_whole_prefix_was_never_seen() -> None:
    explained = Explained()
    explained.ask(A[:8])
    miss = explained.ask(A[:18])
    assert (miss.cause, miss.num_tokens) == (Cause.NEVER_SEEN, {Cause.NEVER_SEEN: 10})


@pytest.mark.parametrize("length", [9, 11])
def test_a_remainder_fills_no_block(length: int) -> None:
    explained = Explained()
    explained.ask(A)
    assert explained.ask(A[:length]).num_tokens == {Cause.REMAINDER: length - 8}


def test_the_last_token_of_a_prompt_that_is_all_there_is_a_remainder() -> None:
    explained = Explained()
    explained.ask(A[:8])
    assert explained.ask(A[:8]).num_tokens == {Cause.REMAINDER: 1}


def test_less_than_a_block_is_a_remainder() -> None:
    assert Explained().ask(A[:3]).num_tokens == {Cause.REMAINDER: 3}


@pytest.mark.parametrize("position", range(1, 14))
def test_where_tokens_differ(position: int) -> None:
    explained = Explained()
    explained.ask(A[:16])
    miss = explained.ask([*A[:position], 7, *A[position + 1 : 20]])
    assert miss.cause is Cause.DIVERGED
    assert miss.divergence is not None
    start = position // SIZE * SIZE
    assert miss.divergence.position == position
    assert (miss.divergence.start, miss.divergence.cached) == (start, tuple(A[start : start + 4]))
    assert miss.num_tokens == {Cause.DIVERGED: 20 - start}


def test_of_several_the_nearest_is_told() -> None:
    explained = Explained()
    for third in (1, 2, 3):
        explained.ask([*A[:4], 50, 60, third, 9])
    explained.ask([*A[:4], 50, 61, 2, 9])
    miss = explained.ask([*A[:4], 50, 60, 2, 8])
    assert miss.divergence is not None
    assert (miss.divergence.position, miss.divergence.cached) == (7, (50, 60, 2, 9))


def test_what_was_evicted_when_and_for_whom() -> None:
    explained = Explained(num_blocks=6)
    explained.now = 10.0
    explained.ask(A[:16], tenant="a")
    explained.now = 25.0
    explained.ask([5] * 20, tenant="b", cache_salt="s")
    explained.now = 32.0
    miss = explained.ask([*A[:16], 1, 2, 3, 4, 5], tenant="a")
    assert miss.cause is Cause.EVICTED
    assert miss.num_tokens == {Cause.EVICTED: 12, Cause.NEVER_SEEN: 5}
    assert miss.position == 4
    assert miss.eviction is not None
    assert miss.eviction.by == Origin("b", "s")
    assert (miss.eviction.seconds_ago, miss.eviction.idle_s) == (7.0, 15.0)


def test_what_lies_behind_what_was_evicted_counts_as_evicted() -> None:
    explained = Explained()
    table = explained.cache.open()
    tokens = A[:13]
    explained.ask(tokens)
    first = explained.cache.match(table, tokens).block_ids[0]
    explained.misses.evicted(table.keys[0], 0, 0.0, Origin())
    explained.cache._blocks.pool.forget([first])
    explained.cache._blocks.index.remove(first)
    explained.cache._blocks.accounts.lost(first)
    miss = explained.ask(tokens)
    assert miss.num_tokens == {Cause.EVICTED: 12, Cause.REMAINDER: 1}


def test_what_came_back_is_not_gone() -> None:
    explained = Explained(num_blocks=4)
    explained.ask(A[:12])
    explained.ask([5] * 16)
    assert explained.ask(A[:12]).cause is Cause.EVICTED
    assert explained.ask(A[:12]).num_tokens == {Cause.REMAINDER: 1}


def test_only_so_many_evictions_are_remembered() -> None:
    explained = Explained(num_blocks=4)
    explained.ask(A[:16])
    for number in range(5):
        explained.ask([number] * 16)
    assert explained.ask(A[:16]).cause is Cause.NEVER_SEEN


@pytest.mark.parametrize(
    "other", [{"tenant": "b"}, {"tenant": "a", "cache_salt": "s"}, {"cache_salt": "s"}]
)
def test_what_is_not_shared(other: dict[str, str]) -> None:
    explained = Explained()
    explained.ask(A[:12], tenant="a")
    miss = explained.ask(A[:12], **other)
    assert (miss.cause, miss.others) == (Cause.NOT_SHARED, (Origin("a"),))
    told = miss.without_others()
    assert (told.cause, told.others) == (Cause.NEVER_SEEN, ())
    assert told.num_tokens == {Cause.NEVER_SEEN: 12}


def test_without_others_it_is_told_where_ones_own_differ() -> None:
    explained = Explained()
    explained.ask(A[:12], tenant="a")
    explained.ask([*A[:2], *A[:10]], tenant="b")
    told = explained.ask(A[:12], tenant="b").without_others()
    assert (told.cause, told.divergence and told.divergence.position) == (Cause.DIVERGED, 2)
    assert told.num_tokens == {Cause.DIVERGED: 12}


def test_nothing_of_others_is_nothing_to_leave_out() -> None:
    explained = Explained()
    explained.ask(A[:12])
    miss = explained.ask(A[:16])
    assert miss.without_others() is miss


def test_another_retention_is_not_shared() -> None:
    explained = Explained()
    explained.ask(A[:12])
    table = explained.cache.open(retention=AttentionWindow(8))
    match = explained.cache.match(table, A[:12])
    lookup = explained.cache.acquire(table, A[:12], match)
    assert lookup is not None
    assert lookup.miss is not None
    assert lookup.miss.cause is Cause.NOT_SHARED
    assert table.origin.differing(lookup.miss.others[0]) == ("retention",)


def test_what_was_not_looked_for() -> None:
    explained = Explained()
    explained.ask(A[:12])
    table = explained.cache.open()
    lookup = explained.cache.acquire(table, A[:12], UNREAD)
    assert lookup is not None
    assert lookup.miss is not None
    assert lookup.miss.num_tokens == {Cause.UNREAD: 12}
    assert explained.cache.stats().prefix_queries == 12


def test_a_cache_that_keeps_nothing() -> None:
    explained = Explained(enable_prefix_caching=False)
    assert explained.ask(A[:12]).num_tokens == {Cause.CACHING_OFF: 12}
    assert explained.ask(A[:12]).num_tokens == {Cause.CACHING_OFF: 12}


def test_who_resumes_is_not_counted() -> None:
    explained = Explained()
    table = explained.cache.open()
    match = explained.cache.match(table, A[:12])
    assert explained.cache.acquire(table, A[:12], match, counted=False) is None
    assert not sum(explained.misses.num_tokens.values())


@pytest.mark.parametrize("forget", ["forget", "reset"])
def test_what_is_forgotten_by_order_was_never_seen(forget: str) -> None:
    explained = Explained(num_blocks=4)
    explained.ask(A[:16])
    explained.ask([5] * 8)
    getattr(explained.cache, forget)()
    assert explained.ask(A[:16]).cause is Cause.NEVER_SEEN


def test_a_window_let_go_of_it() -> None:
    explained = Explained(num_blocks=20, windows=(FULL_ATTENTION, AttentionWindow(8)))
    explained.ask(A[:32])
    explained.ask([5] * 24)
    miss = explained.ask([*A[:16], 7, 7, 7, 7, 7])  # its window would need blocks 2 and 3
    assert miss.eviction is not None
    assert miss.num_tokens == {Cause.EVICTED: 16 - miss.position, Cause.DIVERGED: 5}


words = st.lists(st.integers(0, 2), min_size=1, max_size=14)
requests = st.lists(st.tuples(words, st.sampled_from(["", "a"])), min_size=1, max_size=40)


@settings(max_examples=200)
@given(requests, st.integers(4, 12))
def test_like_a_plain_memory(asked: list[tuple[list[int], str]], pool: int) -> None:
    explained = Explained(num_blocks=pool)
    explained.misses._most_gone = 1000
    seen: dict[str, set[tuple[int, ...]]] = {"": set(), "a": set()}
    total: Counter[Cause] = Counter()
    for tokens, tenant in asked:
        here = _cached(explained, tenant, seen[tenant])
        others = {
            prefix
            for name in seen
            if name != tenant
            for prefix in _cached(explained, name, seen[name])
        }
        miss = explained.ask(tokens, tenant=tenant)
        total.update(miss.num_tokens)
        full = [tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)]
        num_found = next((n for n, each in enumerate(full) if each not in here), len(full))
        num_known = next((n for n, each in enumerate(full) if each not in seen[tenant]), len(full))
        assert miss.position == min(num_found * SIZE, len(tokens) - 1)
        assert sum(miss.num_tokens.values()) == len(tokens) - miss.position
        evicted = num_known * SIZE - miss.position if num_known > num_found else 0
        assert miss.num_tokens.get(Cause.EVICTED, 0) == evicted
        if num_known < len(full):
            parent, block = tuple(tokens[: num_known * SIZE]), full[num_known]
            near = [
                each for each in here if len(each) == len(block) and each[: len(parent)] == parent
            ]
            common = max((_num_common(each, block) for each in near), default=0)
            is_near = bool(near) and (common > 0 or num_known > 0)
            assert (miss.divergence is not None) == is_near
            if miss.divergence is not None:
                assert miss.divergence.position == common
            is_elsewhere = num_known == 0 and block in others
            rest = Cause.NOT_SHARED if is_elsewhere else None
            rest = rest or (Cause.DIVERGED if is_near else Cause.NEVER_SEEN)
            assert set(miss.num_tokens) - {Cause.EVICTED} == {rest}
        else:
            assert set(miss.num_tokens) <= {Cause.EVICTED, Cause.REMAINDER}
        seen[tenant] |= set(full)
    assert explained.misses.num_tokens == {cause: total[cause] for cause in Cause}


def _cached(explained: Explained, tenant: str, seen: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Prefixes of whole blocks whose last block is cached, by keys made anew."""
    cached = set()
    for prefix in seen:
        table = explained.cache.open(tenant=tenant)
        key = table.keys_of(list(prefix), SIZE)[-1]
        if explained.cache._blocks.index.find(key) is not None:
            cached.add(prefix)
    return cached


def _num_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
