"""What operators and tenants are told of a cache; of others' doings a tenant is told nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.cache import BlockTable, CacheManager
from pagoda.cache.explainer import MissExplainer
from pagoda.cache.snapshot import BlockState
from pagoda.engine.cache_snapshot import CacheSnapshot, SequenceSnapshot
from pagoda.server.cache_map import MOST_CELLS, CacheMap
from pagoda.server.cache_news import CacheNews
from pagoda.server.cache_view import MOST_SEQUENCES, OperatorView, TenantView, view_for
from pagoda.server.keys import Holder
from server.news_of_a_cache import Cell, cells_of

SIZE = 2
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=6)
DEEDS = st.lists(st.tuples(st.booleans(), TOKENS), max_size=8)


class House:
    """A cache in use, by a clock that stands until it is told to go on."""

    def __init__(self, num_blocks: int) -> None:
        self.now = 50.0
        self.misses = MissExplainer(num_blocks, SIZE, self.clock)
        self.cache = CacheManager(num_blocks, SIZE, watchers=[self.misses], clock=self.clock)
        self.tables: list[tuple[str, BlockTable, list[int]]] = []

    def clock(self) -> float:
        return self.now

    def begin(self, tenant: str, tokens: list[int]) -> None:
        table = self.cache.open(tenant=tenant)
        match = self.cache.match(table, tokens)
        self.cache.acquire(table, tokens, match)
        assert self.cache.reserve(table, match.num_tokens, len(tokens)) is not None
        self.cache.commit(table, tokens, len(tokens))
        self.tables.append((tenant, table, tokens))

    def end(self, tenant: str) -> None:
        """The first one of a tenant, if any runs."""
        for each in self.tables:
            if each[0] == tenant:
                self.cache.free(each[1])
                self.tables.remove(each)
                return

    def snapshot(self) -> CacheSnapshot:
        sequences = [
            SequenceSnapshot(
                f"{tenant}-{number}", 0, tenant, len(tokens), len(tokens), len(tokens), 0,
                table.snapshot(),
            )
            for number, (tenant, table, tokens) in enumerate(self.tables)
        ]  # fmt: skip
        whole = CacheSnapshot.of(self.cache, (), self.misses)
        return CacheSnapshot(
            whole.block_size, whole.pool, whole.holdings, sequences, {"bob": 3}, whole.lookups,
            whole.lookups_of, whole.num_hinted, whole.took_s,
        )  # fmt: skip


def without_numbers(news: CacheNews) -> dict[str, object]:
    """The news, but for how `House` numbers the requests of all tenants."""
    told = news.model_dump()
    for sequence in told["sequences"]:
        sequence["id"] = sequence["id"].partition("-")[0]
    return told


@settings(deadline=None)
@given(own=DEEDS, others=st.lists(DEEDS, max_size=8))
def test_what_others_do_changes_nothing_that_a_tenant_is_told(
    own: list[tuple[bool, list[int]]], others: list[list[tuple[bool, list[int]]]]
) -> None:
    alone, among, told = House(200), House(200), (TenantView("ann"), TenantView("ann"))
    for number, (begins, tokens) in enumerate(own):
        for other_begins, other_tokens in others[number] if number < len(others) else ():
            if other_begins:
                among.begin("bob", other_tokens)
            else:
                among.end("bob")
        for house in (alone, among):
            if begins:
                house.begin("ann", tokens)
            else:
                house.end("ann")
            house.now += 1
        views = zip((alone, among), told, strict=True)
        here, there = (without_numbers(view.told(house.snapshot())) for house, view in views)
        assert here == there


def test_an_operator_is_told_of_all() -> None:
    house = House(8)
    house.begin("ann", [1, 2, 3])
    house.begin("bob", [1, 2, 3])
    house.begin("bob", [1, 2, 3])
    house.end("ann")
    house.now += 10
    news = OperatorView().told(house.snapshot())
    assert news.is_operator
    assert [(each.name, each.held, each.cached) for each in news.tenants] == [
        ("ann", 0, 1), ("bob", 3, 0),
    ]  # fmt: skip
    assert (news.num_blocks, news.cached, news.held, news.shared) == (8, 1, 2, 1)
    assert (news.num_running, news.num_waiting) == (2, 3)
    assert news.found == 2
    assert news.missed == {"never_seen": 6, "remainder": 1, "not_shared": 0} | news.missed
    cells = cells_of(news.map)
    assert sorted(cell.state for cell in cells) == [0, 0, 0, 0, 1, 2, 2, 3]
    assert {cell.owner for cell in cells if cell.state == BlockState.CACHED} == {1}
    assert {cell.age for cell in cells if cell.state} == {3}  # 10 s: at least 7, not yet 15
    for sequence in news.sequences:
        blocks = [
            place
            for first, count in zip(sequence.cells[::2], sequence.cells[1::2], strict=True)
            for place in range(first, first + count)
        ]
        assert len(blocks) == sequence.num_blocks == 2
        assert {cells[place].owner for place in blocks} == {sequence.owner} == {2}


def test_a_tenant_is_told_of_its_own_and_the_size_of_the_pool() -> None:
    house = House(8)
    house.begin("bob", [1, 2, 3])
    house.begin("ann", [1, 2, 3, 4])
    news = TenantView("ann").told(house.snapshot())
    assert not news.is_operator
    assert [each.name for each in news.tenants] == ["ann"]
    assert (news.num_blocks, news.held, news.cached) == (8, 2, 0)
    assert [each.id for each in news.sequences] == ["ann-1"]
    assert (news.num_running, news.num_waiting) == (1, 0)
    assert [cell.state for cell in cells_of(news.map)] == [2, 2, 0, 0, 0, 0, 0, 0]
    assert "bob" not in news.model_dump_json()


def test_a_tenant_that_has_nothing_sees_nothing() -> None:
    house = House(4)
    house.begin("bob", [1, 2, 3])
    news = TenantView("ann").told(house.snapshot())
    assert (news.held, news.cached, news.sequences, news.found) == (0, 0, [], 0)
    assert set(cells_of(news.map)) == {Cell(0, 0, 0, 0)}
    assert sum(news.missed.values()) == 0


def test_a_block_keeps_its_place_and_what_is_lost_leaves_a_mark() -> None:
    house = House(4)
    view = TenantView("ann")
    house.begin("ann", [1, 2, 3, 4])
    house.begin("ann", [5, 6])
    view.told(house.snapshot())
    house.end("ann")
    house.now += 1
    before = cells_of(view.told(house.snapshot()).map)
    assert [cell.state for cell in before] == [1, 1, 2, 0]
    house.begin("bob", list(range(6)))
    house.now += 1
    after = view.told(house.snapshot())
    assert [cell.state for cell in cells_of(after.map)] == [0, 0, 2, 0]
    assert [cell.lost for cell in cells_of(after.map)] == [3, 3, 0, 0]
    assert after.tenants[0].evicted_for_others == 2
    house.now += 5
    assert not any(cell.lost for cell in cells_of(view.told(house.snapshot()).map))


def test_who_came_into_whose_place_is_not_told() -> None:
    """Of the blocks that a tenant takes, which were others' before is nothing of its own."""
    house = House(3)
    house.begin("bob", [1, 2, 3, 4])
    house.end("bob")
    house.begin("ann", [1, 2, 3, 4, 5, 6])
    told = cells_of(TenantView("ann").told(house.snapshot()).map)
    assert [(cell.state, cell.lost) for cell in told] == [(2, 0)] * 3
    seen = cells_of(OperatorView().told(house.snapshot()).map)
    assert sorted(cell.lost for cell in seen) == [0, 3, 3]


def test_many_sequences_are_counted_and_the_first_told() -> None:
    house = House(200)
    for number in range(MOST_SEQUENCES + 5):
        house.begin("ann", [number] * 2)
    for view in (OperatorView(), TenantView("ann")):
        news = view.told(house.snapshot())
        assert (news.num_running, len(news.sequences)) == (MOST_SEQUENCES + 5, MOST_SEQUENCES)


def test_more_tenants_than_colours_are_told_as_one() -> None:
    house = House(600)
    for number in range(300):
        house.begin(f"tenant-{number}", [1, 2])
    house.end("tenant-299")
    news = OperatorView().told(house.snapshot())
    assert len(news.tenants) == 255
    assert (news.tenants[-1].name, news.tenants[-1].held, news.tenants[-1].cached) == (
        "others", 45, 1,
    )  # fmt: skip
    assert max(cell.owner for cell in cells_of(news.map)) == 255
    own = TenantView("tenant-280").told(house.snapshot())
    assert (own.held, own.cached) == (1, 0)


@pytest.mark.parametrize("num_blocks", [1, MOST_CELLS, MOST_CELLS + 1, 100_001])
def test_a_cell_shows_the_block_that_is_worth_most(num_blocks: int) -> None:
    random = np.random.default_rng(num_blocks)
    layout = CacheMap(num_blocks)
    states = random.integers(0, 4, num_blocks).astype(np.uint8)
    owners = np.where(states > 0, random.integers(1, 300, num_blocks), 0).astype(np.int32)
    age_s = random.exponential(100, num_blocks)
    lost_s = random.exponential(3, num_blocks)
    cells = layout.cells(states, owners, age_s, lost_s)
    assert len(cells) == layout.num_cells <= MOST_CELLS
    for place in random.integers(0, layout.num_cells, 50):
        own = slice(place * layout.blocks_per_cell, (place + 1) * layout.blocks_per_cell)
        ages = np.minimum(np.floor(np.log2(age_s[own] + 1)), 15)
        most, owner = max(
            ((state, -age), min(owner, 255))
            for state, age, owner in zip(states[own], ages, owners[own], strict=True)
        )
        assert (cells[place] >> 8) & 3 == most[0]
        if most[0]:
            assert ((cells[place] >> 10) & 15, cells[place] & 255) == (-most[1], owner)
        assert cells[place] >> 14 == max((lost_s[own][:, None] < [0.6, 1.5, 3.0]).sum(axis=1))


def spelt(runs: Sequence[int]) -> list[int]:
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return [place for first, count in pairs for place in range(first, first + count)]


@given(tables=st.lists(st.lists(st.integers(-1, 20), max_size=9), max_size=4))
def test_runs_are_the_blocks_in_order(tables: list[list[int]]) -> None:
    told = CacheMap(21).runs([np.array(table, np.int32) for table in tables])
    for table, runs in zip(tables, told, strict=True):
        held = [block_id for block_id in table if block_id >= 0]
        assert spelt(runs) == [
            block_id for at, block_id in enumerate(held) if not at or held[at - 1] != block_id
        ]


def test_a_long_table_is_cut() -> None:
    [runs] = CacheMap(2000).runs([np.arange(0, 2000, 2, dtype=np.int32)])
    assert spelt(runs) == list(range(0, 256, 2))


@pytest.mark.parametrize(("is_operator", "kind"), [(True, OperatorView), (False, TenantView)])
def test_each_holder_has_its_view(is_operator: bool, kind: type) -> None:
    assert isinstance(view_for(Holder("ann", is_operator)), kind)
