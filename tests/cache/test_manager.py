"""The cache's behaviour, one story at a time."""

from array import array

import pytest

from pagoda.cache import NO_MATCH, BlockTable, CacheManager, PrefixMatch
from pagoda.cache.evictions.lru import LRU
from pagoda.errors import BlockTableError, IntegrityError, InvalidOptionError, RefusedError

SIZE = 4


def fill(cache: CacheManager, tokens: list[int], **who: str) -> tuple[BlockTable, PrefixMatch]:
    """A sequence whose tokens have all been computed."""
    table = cache.open(**who)
    match = cache.match(table, tokens)
    cache.acquire(table, tokens, match)
    cache.reserve(table, match.num_tokens, len(tokens))
    cache.commit(table, tokens, len(tokens))
    return table, match


def hit(cache: CacheManager, tokens: list[int], **who: str) -> int:
    return cache.match(cache.open(**who), tokens).num_tokens


def test_a_finished_sequence_can_be_found_up_to_its_last_full_block() -> None:
    cache = CacheManager(8, SIZE)
    table, _ = fill(cache, list(range(10)))
    cache.free(table)
    assert cache.num_free_blocks == 8
    assert hit(cache, list(range(10))) == 8
    assert hit(cache, [*range(8), 99, 98]) == 8
    assert hit(cache, [*range(7), 99, 98]) == 4
    assert hit(cache, [99, *range(9)]) == 0


def test_one_token_is_always_left_to_compute() -> None:
    cache = CacheManager(8, SIZE)
    cache.free(fill(cache, list(range(8)))[0])
    table = cache.open()
    match = cache.match(table, list(range(8)))
    assert (match.num_tokens, len(match.block_ids)) == (7, 2)
    assert hit(cache, list(range(9))) == 8


def test_writing_into_a_published_block_copies_it() -> None:
    cache = CacheManager(8, SIZE)
    first, _ = fill(cache, list(range(8)))
    second = cache.open()
    match = cache.match(second, list(range(8)))
    cache.acquire(second, list(range(8)), match)
    free = cache.num_free_blocks
    (copy,) = cache.reserve(second, 7, 8)
    assert cache.num_free_blocks == free - 1
    assert copy.source == first.block_ids[1]
    assert copy.target == second.block_ids[1] != first.block_ids[1]
    assert second.block_ids[0] == first.block_ids[0]
    cache.check_integrity()


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    cache = CacheManager(3, SIZE)
    fill(cache, list(range(8)))
    second = cache.open()
    assert cache.reserve(second, 0, 2 * SIZE) is None
    assert (len(second), cache.num_free_blocks) == (0, 1)
    assert cache.reserve(second, 0, SIZE) == ()
    assert cache.reserve(second, SIZE, 2 * SIZE) is None
    cache.check_integrity()


def test_a_snapshot_is_one_array_until_the_table_changes() -> None:
    cache = CacheManager(8, SIZE)
    table, _ = fill(cache, list(range(6)))
    before = table.snapshot()
    cache.reserve(table, 6, 8)
    assert table.snapshot() is before
    cache.reserve(table, 8, 9)
    after = table.snapshot()
    assert (before.tolist(), after.tolist()) == (list(table.block_ids[:2]), list(table.block_ids))
    assert not after.flags.writeable
    cache.fork(table, 6)
    (copy,) = cache.reserve(table, 5, 6) or ()
    assert table.snapshot()[1] == copy.target != after[1]
    cache.free(table)
    assert len(table.snapshot()) == 0


def test_forks_share_until_one_of_them_writes() -> None:
    cache = CacheManager(8, SIZE)
    parent, _ = fill(cache, list(range(6)))
    children = [cache.fork(parent, 6) for _ in range(3)]
    assert cache.num_free_blocks == 6
    copies = [cache.reserve(table, 6, 7) for table in (*children, parent)]
    assert [len(made) for made in copies] == [1, 1, 1, 0]
    assert len({table.block_ids[1] for table in (*children, parent)}) == 4
    cache.check_integrity()
    for table in (*children, parent):
        cache.free(table)
    assert cache.num_free_blocks == 8


def test_tails_are_evicted_before_heads() -> None:
    cache = CacheManager(4, SIZE)
    table, _ = fill(cache, list(range(16)))
    cache.free(table)
    other = cache.open()
    cache.reserve(other, 0, 2 * SIZE)
    assert hit(cache, list(range(16))) == 8
    assert cache.stats().evictions == 2


def test_blank_blocks_go_before_cached_ones() -> None:
    cache = CacheManager(4, SIZE)
    cache.free(fill(cache, list(range(9)))[0])
    other = cache.open()
    cache.reserve(other, 0, 2 * SIZE)
    assert cache.stats().evictions == 0
    assert hit(cache, list(range(9))) == 8


def test_the_least_recently_used_prefix_goes_first() -> None:
    cache = CacheManager(3, SIZE)
    for start in (0, 10, 20):
        cache.free(fill(cache, list(range(start, start + 5)))[0])
    cache.free(fill(cache, list(range(5)))[0])  # used again: now the youngest
    cache.free(fill(cache, list(range(30, 35)))[0])
    found = [hit(cache, list(range(start, start + 5))) for start in (0, 10, 20, 30)]
    assert found == [4, 0, 0, 4]


def test_neither_tenant_nor_salt_nor_codec_is_crossed() -> None:
    cache = CacheManager(8, SIZE, codec="bfloat16")
    cache.free(fill(cache, list(range(9)), tenant="a", cache_salt="s")[0])
    assert hit(cache, list(range(9)), tenant="a", cache_salt="s") == 8
    assert hit(cache, list(range(9)), tenant="b", cache_salt="s") == 0
    assert hit(cache, list(range(9)), tenant="a") == 0
    roots = {CacheManager(1, 1, codec=codec).open().root for codec in ("bfloat16", "int8")}
    assert len(roots) == 2


def test_what_another_is_computing_is_in_flight() -> None:
    cache = CacheManager(8, SIZE)
    tokens = list(range(12))
    owner, waiter = cache.open(), cache.open()
    cache.acquire(owner, tokens, cache.match(owner, tokens))
    cache.reserve(owner, 0, 12)

    awaited = cache.match(waiter, tokens).in_flight
    assert awaited is not None
    assert cache.is_in_flight(awaited)

    cache.commit(owner, tokens, 5)
    assert not cache.is_in_flight(awaited)
    match = cache.match(waiter, tokens)
    assert match.num_tokens == 4
    assert match.in_flight not in (None, awaited)

    cache.free(owner)
    assert cache.match(waiter, tokens).in_flight is None
    assert cache.match(waiter, tokens).num_tokens == 4


def test_nobody_waits_across_salts() -> None:
    cache = CacheManager(8, SIZE)
    owner = cache.open(cache_salt="a")
    cache.acquire(owner, list(range(8)), cache.match(owner, list(range(8))))
    assert cache.match(cache.open(cache_salt="b"), list(range(8))).in_flight is None


def test_a_block_computed_twice_stays_private() -> None:
    cache = CacheManager(8, SIZE)
    tables = [cache.open(), cache.open()]
    for table in tables:
        cache.reserve(table, 0, SIZE)
        cache.commit(table, list(range(SIZE)), SIZE)
    assert cache.stats().num_indexed_blocks == 1
    for table in tables:
        cache.free(table)
    assert cache.stats().num_cached_blocks == 1
    cache.check_integrity()


def test_statistics_count_tokens_and_leave_resumption_out() -> None:
    cache = CacheManager(8, SIZE)
    tokens = list(range(9))
    table, _ = fill(cache, tokens)
    cache.free(table)
    cache.acquire(table, tokens, cache.match(table, tokens), counted=False)
    cache.free(table)
    fill(cache, [*tokens, 10, 11])
    stats = cache.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (9 + 11, 8)
    assert stats.usage == pytest.approx(3 / 8)


def test_without_prefix_caching_nothing_is_shared() -> None:
    cache = CacheManager(8, SIZE, enable_prefix_caching=False)
    cache.free(fill(cache, list(range(9)))[0])
    assert hit(cache, list(range(9))) == 0
    assert cache.stats().num_indexed_blocks == 0


def test_forgetting_leaves_sequences_alone() -> None:
    cache = CacheManager(8, SIZE)
    table, _ = fill(cache, list(range(9)))
    cache.forget()
    assert hit(cache, list(range(9))) == 0
    assert len(table) == 3
    cache.free(table)
    assert cache.stats().num_cached_blocks == 0
    cache.check_integrity()


def test_at_most_a_block_less_one_token_is_wasted() -> None:
    cache = CacheManager(64, SIZE)
    for count in range(1, 20):
        table = cache.open()
        cache.reserve(table, 0, count)
        assert 0 <= len(table) * SIZE - count <= SIZE - 1
        cache.free(table)


@pytest.mark.parametrize(
    ("num_blocks", "block_size"), [(0, 4), (4, 0), (-1, 4), ("4", 4), (4, 2.0), (4, True)]
)
def test_a_pool_of_nothing_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(InvalidOptionError, match="whole number of at least 1"):
        CacheManager(num_blocks, block_size)


def test_no_tokens_match_nothing() -> None:
    cache = CacheManager(8, SIZE)
    assert cache.match(cache.open(), []) == NO_MATCH == PrefixMatch((), 0, None)


def test_blocks_to_admit_are_new_ones_copies_and_those_that_nobody_holds() -> None:
    cache = CacheManager(8, SIZE)
    tokens = list(range(8))
    holder, _ = fill(cache, tokens)
    match = cache.match(cache.open(), tokens)
    assert cache.num_blocks_to_admit(8, match) == 1, "a copy of the block that is written into"
    assert cache.num_blocks_to_admit(13, match) == 3, "and two more"
    cache.free(holder)
    assert cache.num_blocks_to_admit(13, match) == 5, "and the two of the match, now free"
    assert cache.num_blocks_to_admit(13, NO_MATCH) == 4


def test_blocks_to_go_on_are_those_that_lack_and_one() -> None:
    cache = CacheManager(8, SIZE)
    table = cache.open()
    cache.reserve(table, 0, 6)
    assert [cache.num_blocks_to_go_on(table, count) for count in (6, 8, 9, 17)] == [1, 1, 2, 4]


class TestMisuse:
    """Every misuse is a typed error that names its field, and nothing has changed."""

    def make(self) -> tuple[CacheManager, BlockTable, list[int]]:
        cache = CacheManager(8, SIZE)
        tokens = list(range(10))
        return cache, fill(cache, tokens)[0], tokens

    def refused(self, cache: CacheManager, field: str, call) -> None:
        before, tables = cache.stats(), {t: list(t.block_ids) for t in cache._tables}
        keys = {t: t.keys[:] for t in cache._tables}
        with pytest.raises(BlockTableError) as error:
            call()
        assert isinstance(error.value, RefusedError)
        assert error.value.field == field
        assert cache.stats() == before
        assert {t: list(t.block_ids) for t in cache._tables} == tables
        assert {t: t.keys for t in cache._tables} == keys
        cache.check_integrity()

    @pytest.mark.parametrize(
        "others",
        [
            [*range(4), 9, 9, 9, 9, 9, 9],  # the last block that has a key
            [9, *range(1, 10)],  # the first
            [9] * 9,
            [0, 1, 2],  # shorter than what has keys
            [*range(8), -1, 2, 3, 4],  # no token
            [*range(8), 2**32, 2, 3, 4],
        ],
    )
    def test_a_second_list_of_tokens(self, others: list[int]) -> None:
        cache, table, tokens = self.make()
        self.refused(cache, "tokens", lambda: cache.match(table, others))
        cache.free(table)
        self.refused(cache, "tokens", lambda: cache.acquire(table, others, NO_MATCH))
        assert cache.match(table, tokens).num_tokens == 8

    def test_a_list_that_was_changed_where_its_last_full_block_is(self) -> None:
        cache, table, tokens = self.make()
        cache.match(table, tokens)
        tokens[7] = 99
        self.refused(cache, "tokens", lambda: cache.match(table, tokens))

    def test_the_same_tokens_in_another_list_are_the_same(self) -> None:
        cache, table, tokens = self.make()
        assert cache.match(table, tuple(tokens)).num_tokens == 8
        assert cache.match(table, [*tokens, 10, 11, 12]).num_tokens == 8

    def test_committing_other_tokens_than_those_that_were_matched(self) -> None:
        cache, table, _ = self.make()
        cache.reserve(table, 10, 12)
        self.refused(cache, "tokens", lambda: cache.commit(table, [7] * 12, 12))

    def test_committing_what_was_not_reserved(self) -> None:
        cache, table, tokens = self.make()
        fresh, longer = cache.open(), [*tokens, *range(10)]
        self.refused(cache, "table", lambda: cache.commit(fresh, tokens, 8))
        self.refused(cache, "num_computed", lambda: cache.commit(table, longer, 13))

    def test_committing_more_than_there_are_tokens(self) -> None:
        cache, table, tokens = self.make()
        self.refused(cache, "num_computed", lambda: cache.commit(table, tokens, 12))

    def test_freeing_twice(self) -> None:
        cache, table, _ = self.make()
        cache.free(table)
        self.refused(cache, "table", lambda: cache.free(table))

    def test_a_table_that_never_held_anything_may_be_freed(self) -> None:
        cache, _, _ = self.make()
        cache.free(cache.open())
        cache.check_integrity()

    def test_reserving_for_a_freed_table(self) -> None:
        cache, table, tokens = self.make()
        cache.free(table)
        self.refused(cache, "table", lambda: cache.reserve(table, 0, 4))
        self.refused(cache, "table", lambda: cache.fork(table, 4))
        self.refused(cache, "table", lambda: cache.commit(table, tokens, 8))

    def test_acquiring_twice(self) -> None:
        cache, table, tokens = self.make()
        match = cache.match(table, tokens)
        self.refused(cache, "table", lambda: cache.acquire(table, tokens, match))

    def test_acquiring_what_has_been_evicted_since(self) -> None:
        cache, table, tokens = self.make()
        cache.free(table)
        match = cache.match(table, tokens)
        cache.reserve(cache.open(), 0, 8 * SIZE)
        self.refused(cache, "match", lambda: cache.acquire(table, tokens, match))

    @pytest.mark.parametrize(
        ("start", "stop", "field"), [(9, 6, "stop"), (-1, 4, "start"), (13, 14, "start")]
    )
    def test_positions_out_of_order(self, start: int, stop: int, field: str) -> None:
        cache, table, _ = self.make()
        self.refused(cache, field, lambda: cache.reserve(table, start, stop))

    @pytest.mark.parametrize("num_tokens", [-1, 13])
    def test_forking_more_than_there_is(self, num_tokens: int) -> None:
        cache, table, _ = self.make()
        self.refused(cache, "num_tokens", lambda: cache.fork(table, num_tokens))

    def test_a_table_of_another_cache(self) -> None:
        cache, _, tokens = self.make()
        _, foreign, _ = self.make()
        for call in (
            lambda: cache.match(foreign, tokens),
            lambda: cache.acquire(foreign, tokens, NO_MATCH),
            lambda: cache.reserve(foreign, 10, 14),
            lambda: cache.commit(foreign, [*tokens, 1, 2], 12),
            lambda: cache.fork(foreign, 4),
            lambda: cache.free(foreign),
        ):
            self.refused(cache, "table", call)


class TestIntegrityCheck:
    """`check_integrity` must see what it claims to see."""

    def make(self) -> tuple[CacheManager, BlockTable]:
        cache = CacheManager(8, SIZE)
        cache.free(fill(cache, list(range(100, 109)))[0])
        table, _ = fill(cache, list(range(9)))
        cache.check_integrity()
        return cache, table

    def test_a_leaked_reference(self) -> None:
        cache, table = self.make()
        cache._blocks.pool.ref_counts[table.block_ids[0]] += 1
        self.expect(cache, "references")

    def test_a_lost_block(self) -> None:
        cache, _ = self.make()
        cache._blocks.pool._blank.pop()
        self.expect(cache, "lost")

    def test_a_block_free_twice(self) -> None:
        cache, _ = self.make()
        cache._blocks.pool._blank.append(cache._blocks.pool._blank[0])
        self.expect(cache, "twice")

    def test_a_free_block_that_is_held(self) -> None:
        cache, table = self.make()
        cache._blocks.pool._blank[0] = table.block_ids[0]
        self.expect(cache, "free and held")

    def test_a_cached_block_nobody_can_find(self) -> None:
        cache, _ = self.make()
        cache._blocks.index.remove(next(iter(cache._blocks.pool.cached_ids())))
        self.expect(cache, "cannot be found")

    def test_a_table_that_repeats_a_block(self) -> None:
        cache, table = self.make()
        table.block_ids = array("i", [*table.block_ids, table.block_ids[0]])
        cache._blocks.pool.ref_counts[table.block_ids[0]] += 1
        self.expect(cache, "repeats")

    def test_a_key_that_is_not_the_tokens(self) -> None:
        cache, table = self.make()
        table.keys[1] = table.keys[1]._replace(tokens=b"\0" * 4 * SIZE)
        self.expect(cache, "chain")

    def test_a_block_published_under_the_key_of_another(self) -> None:
        cache, table = self.make()
        cache._blocks.index._keys[table.block_ids[0]] = table.keys[1]
        cache._blocks.index._block_ids = {
            key.hash: block_id for block_id, key in cache._blocks.index.items().items()
        }
        self.expect(cache, "another's|differ")

    def test_a_published_block_taken_for_a_tables_own(self) -> None:
        cache, table = self.make()
        table.num_committed = table.num_shared = 0
        self.expect(cache, "is published and taken for a table's own")

    def test_a_shared_block_taken_for_a_tables_own(self) -> None:
        cache = CacheManager(8, SIZE, enable_prefix_caching=False)
        table, _ = fill(cache, list(range(6)))
        cache.fork(table, 6)
        table.num_forked = table.num_shared = 0
        self.expect(cache, "others hold is taken for a table's own")

    @pytest.mark.parametrize(
        ("field", "count"),
        [("num_committed", 0), ("num_committed", 3), ("num_forked", 3), ("num_shared", 0),
         ("num_shared", 3)],
    )  # fmt: skip
    def test_blocks_that_others_see_counted_wrong(self, field: str, count: int) -> None:
        cache, table = self.make()
        setattr(table, field, count)
        self.expect(cache, "counted wrong")

    def test_an_awaited_block_nobody_computes(self) -> None:
        cache, _ = self.make()
        cache._in_flight.announce(b"hash", BlockTable())
        self.expect(cache, "awaited")

    def expect(self, cache: CacheManager, words: str) -> None:
        with pytest.raises(IntegrityError, match=words):
            cache.check_integrity()


@pytest.mark.parametrize("num_tokens", [SIZE + 1, 2 * SIZE])
def test_what_a_fork_was_given_may_be_published_by_its_parent_later(num_tokens: int) -> None:
    """The fork comes before anything is heard of what the parent has computed."""
    cache, tokens = CacheManager(8, SIZE), list(range(2 * SIZE))
    parent = cache.open()
    cache.acquire(parent, tokens, cache.match(parent, tokens))
    assert cache.reserve(parent, 0, len(tokens)) == ()
    child = cache.fork(parent, num_tokens)
    cache.commit(parent, tokens, len(tokens))
    cache.check_integrity()
    cache.free(parent)
    cache.check_integrity()
    own = [*tokens[:num_tokens], *range(100, 100 + SIZE)]
    written_into = child.block_ids[num_tokens // SIZE :].tolist()
    copies = cache.reserve(child, num_tokens, len(own))
    assert [copy.source for copy in copies or ()] == written_into
    cache.commit(child, own, len(own))
    cache.check_integrity()
    cache.free(child)
    assert hit(cache, [*own, 7]) == len(own) // SIZE * SIZE


def test_another_eviction_policy_is_one_class() -> None:
    class MostRecent(LRU):
        def evict(self) -> int:
            return self._order.popitem(last=True)[0]

    cache = CacheManager(3, SIZE, eviction=MostRecent())
    for start in (0, 10, 20):
        cache.free(fill(cache, list(range(start, start + 5)))[0])
    cache.free(fill(cache, list(range(30, 35)))[0])
    assert hit(cache, list(range(20, 25))) == 0
    assert hit(cache, list(range(5))) == 4
