"""What a snapshot says of every block, against what the cache itself knows, in random lives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cache.test_accounts import Clock
from pagoda.cache import BlockTable, CacheManager
from pagoda.cache.snapshot import BlockState

TENANTS = ("ann", "bob", "cyd")
LIVES = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end", "wait", "forget"]),
        st.sampled_from(TENANTS),
        st.lists(st.integers(0, 1), min_size=1, max_size=9),
    ),
    max_size=30,
)


def begin(cache: CacheManager, tenant: str, tokens: list[int]) -> BlockTable | None:
    """A sequence that has computed all of its tokens, where it fits."""
    table = cache.open(tenant=tenant)
    match = cache.match(table, tokens)
    cache.acquire(table, tokens, match)
    if cache.reserve(table, match.num_tokens, len(tokens)) is None:
        cache.free(table)
        return None
    cache.commit(table, tokens, len(tokens))
    return table


@settings(deadline=None)
@given(life=LIVES)
def test_every_block_is_told_as_it_is(
    life: list[tuple[str, str, list[int]]],
) -> None:
    clock = Clock()
    cache = CacheManager(6, 2, clock=clock)
    tables: list[BlockTable] = []
    for what, tenant, tokens in life:
        if what == "begin" and (table := begin(cache, tenant, tokens)) is not None:
            tables.append(table)
        elif what == "end" and tables:
            cache.free(tables.pop(0))
        elif what == "forget":
            cache.forget()
        clock.now += what == "wait"
        assert_true_of(cache, tables)


def assert_true_of(cache: CacheManager, tables: list[BlockTable]) -> None:
    told, blocks = cache.snapshot(), cache._blocks
    for block_id, state in enumerate(told.states().tolist()):
        holders = [table.origin.tenant for table in tables if block_id in table.block_ids]
        owner = told.owners[block_id]
        assert blocks.accounts.tenant_of(block_id) == (told.tenants[owner - 1] if owner else None)
        assert told.ref_counts[block_id] == len(holders)
        if holders:
            assert state == (BlockState.SHARED if len(holders) > 1 else BlockState.HELD)
            assert set(holders) == {told.tenants[owner - 1]}
        else:
            is_found = block_id in blocks.index
            assert state == (BlockState.CACHED if is_found else BlockState.BLANK)
    assert told.now == blocks.accounts.now
    assert (told.since <= told.now).all()
    assert (told.lost_at <= told.now).all()


def test_a_snapshot_stays_as_it_was() -> None:
    cache = CacheManager(4, 2)
    before = cache.snapshot()
    begin(cache, "ann", [1, 2, 3])
    assert before.states().tolist() == [BlockState.BLANK] * 4
    assert before.tenants == ()
    assert sorted(cache.snapshot().states().tolist()) == [0, 0, BlockState.HELD, BlockState.HELD]


def test_when_and_for_whom_a_block_went() -> None:
    clock = Clock()
    cache = CacheManager(2, 2, clock=clock)
    for seconds, tenant, token in ((1, "ann", 1), (2, "ann", 2), (4, "bob", 3)):
        table = begin(cache, tenant, [token] * 4)
        assert table is not None
        clock.now += seconds
        cache.free(table)
    told = cache.snapshot()
    assert told.lost_at.tolist() == [103.0, 103.0]
    assert told.since.tolist() == [107.0, 107.0]
    ann, bob = cache.holdings()["ann"], cache.holdings()["bob"]
    assert (ann.num_evicted_for_own, ann.num_evicted_for_others) == (2, 2)
    assert (bob.num_evicted_for_own, bob.num_evicted_for_others) == (0, 0)
