"""How long blocks stay in a cache, by a clock that is told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pagoda.cache import CacheManager
from pagoda.cache.watcher import CacheWatcher
from pagoda.engine.block_lives import BlockLives
from pagoda.engine.histogram import Histogram

SIZE = 4
A, B = list(range(100, 140)), list(range(200, 240))


class Timed:
    """A cache of four blocks, and its blocks' lives."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lives = BlockLives(clock=lambda: self.now)
        self.cache = CacheManager(4, SIZE, watchers=[self.lives], clock=lambda: self.now)

    def ask(self, tokens: Sequence[int], seconds: float) -> None:
        """A request whose blocks are full at once and are held for so long."""
        table = self.cache.open()
        match = self.cache.match(table, tokens)
        self.cache.acquire(table, tokens, match)
        assert self.cache.reserve(table, match.num_tokens, len(tokens)) is not None
        self.cache.commit(table, tokens, len(tokens))
        self.now += seconds
        self.cache.free(table)


def told(histogram: Histogram) -> tuple[int, float]:
    return histogram.num_values, histogram.total


def test_it_is_a_watcher() -> None:
    assert isinstance(BlockLives(), CacheWatcher)


def test_lifetimes_idle_times_and_gaps() -> None:
    timed = Timed()
    lives = timed.lives
    timed.ask(A[:9], seconds=3)  # two full blocks, from 0 s on, let go at 3 s
    timed.now = 10
    timed.ask(A[:9], seconds=5)  # both again, let go at 15 s
    assert told(lives.kv_block_reuse_gap_seconds) == (2, 2 * 7)
    assert told(lives.kv_block_lifetime_seconds) == (0, 0)
    timed.now = 40
    timed.ask(B[:16], seconds=1)  # all blocks: two are evicted
    assert told(lives.kv_block_lifetime_seconds) == (2, 2 * 40)
    assert told(lives.kv_block_idle_before_evict_seconds) == (2, 2 * 25)
    assert told(lives.kv_block_reuse_gap_seconds) == (2, 2 * 7)


def test_what_others_hold_was_not_idle() -> None:
    timed = Timed()
    first, second = timed.cache.open(), timed.cache.open()
    for table in (first, second):
        match = timed.cache.match(table, A[:5])
        timed.cache.acquire(table, A[:5], match)
        timed.cache.reserve(table, match.num_tokens, 5)
        timed.cache.commit(table, A[:5], 5)
        timed.now += 10
    assert told(timed.lives.kv_block_reuse_gap_seconds) == (0, 0)


def test_what_is_forgotten_by_order_has_no_lifetime() -> None:
    timed = Timed()
    timed.ask(A[:9], seconds=1)
    timed.cache.forget()
    timed.now = 50
    timed.ask(B[:16], seconds=1)
    assert told(timed.lives.kv_block_lifetime_seconds) == (0, 0)
    timed.now = 60
    timed.ask(A[:9], seconds=1)
    assert told(timed.lives.kv_block_lifetime_seconds) == (3, 3 * 10)


def test_buckets_begin_and_end_as_vllms() -> None:
    bounds = [bound for bound, _ in BlockLives().kv_block_lifetime_seconds.cumulative()]
    assert bounds[0] == 0.001
    assert {0.5, 60, 1800} <= set(bounds)
    assert bounds[-1] == math.inf
