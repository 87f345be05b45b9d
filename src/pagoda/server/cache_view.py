"""What is told of a cache to whom.

An operator is told all. A tenant is told of its own blocks and sequences, and how large the pool
is: where others' blocks are, and when they come and go, is not for it to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pagoda.cache.accounts import NOTHING, Holding
from pagoda.cache.lookup_counts import LookupCounts
from pagoda.cache.snapshot import BlockState
from pagoda.engine.cache_snapshot import CacheSnapshot, SequenceSnapshot
from pagoda.server.cache_map import LAST_OWNER, CacheMap, Cells, packed
from pagoda.server.cache_news import CacheNews, MapNews, SequenceNews, TenantNews
from pagoda.server.keys import Holder
from pagoda.server.own_slots import OwnSlots

MOST_SEQUENCES = 64
Places = Callable[[NDArray[np.int32]], NDArray[np.int32]]


class CacheView(Protocol):
    """One kind of viewer's view, which may remember what it has told."""

    period_s: float
    """It may be told so often."""

    def told(self, snapshot: CacheSnapshot) -> CacheNews:
        """What may be told of a snapshot, which is newer than the one before."""
        ...


def view_for(holder: Holder) -> CacheView:
    """A view that has told nothing yet."""
    return OperatorView() if holder.is_operator else TenantView(holder.tenant)


class OperatorView:
    """Everything."""

    period_s = 0.0

    def told(self, snapshot: CacheSnapshot) -> CacheNews:
        pool = snapshot.pool
        layout, states = CacheMap(pool.num_blocks), pool.states()
        cells = layout.cells(states, pool.owners, pool.now - pool.since, pool.now - pool.lost_at)
        return _news(
            snapshot,
            is_operator=True,
            states=states,
            tenants=_all_tenants(snapshot),
            lookups=snapshot.lookups,
            sequences=_sequences(snapshot.sequences, pool.tenants, layout, np.asarray),
            num_running=len(snapshot.sequences),
            num_waiting=sum(snapshot.num_waiting.values()),
            map=_map(layout, cells),
        )


class TenantView:
    """What is one tenant's.

    Its blocks are shown in places of their own. What becomes of them may be for others' sake, which
    is told in whole seconds, as everywhere.
    """

    period_s = 1.0

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._slots: OwnSlots | None = None
        self._was_cached: NDArray[np.bool_] | None = None
        """Which blocks were the tenant's and cached, when it was last told."""
        self._told_at = 0.0
        self._lost_at: NDArray[np.float64] | None = None
        """By place: when a block of the tenant's was last lost there."""

    def told(self, snapshot: CacheSnapshot) -> CacheNews:
        pool = snapshot.pool
        is_own = pool.owners == _number(pool.tenants, self._tenant)
        states = pool.states() * is_own
        own = [each for each in snapshot.sequences if each.tenant == self._tenant]
        layout = CacheMap(pool.num_blocks)
        slots = self._placed(snapshot, is_own, states, own)
        return _news(
            snapshot,
            is_operator=False,
            states=states,
            tenants=[_tenant(self._tenant, snapshot.holdings.get(self._tenant, NOTHING))],
            lookups=snapshot.lookups_of.get(self._tenant, LookupCounts()),
            sequences=_sequences(own, [self._tenant], layout, slots.slots_of),
            num_running=len(own),
            num_waiting=snapshot.num_waiting.get(self._tenant, 0),
            map=_map(layout, self._cells(snapshot, layout, slots, is_own, states)),
        )

    def _placed(
        self,
        snapshot: CacheSnapshot,
        is_own: NDArray[np.bool_],
        states: NDArray[np.uint8],
        sequences: Sequence[SequenceSnapshot],
    ) -> OwnSlots:
        """The tenant's blocks in their places, and what was lost where."""
        pool = snapshot.pool
        if self._slots is None or self._was_cached is None or self._lost_at is None:
            self._slots = OwnSlots(pool.num_blocks)
            self._lost_at = np.full(pool.num_blocks, -np.inf)
        else:
            lost = self._was_cached & (~is_own | (pool.lost_at > self._told_at))
            self._lost_at[self._slots.slots_of(np.flatnonzero(lost).astype(np.int32))] = pool.now
        self._slots.update(is_own, [each.block_ids for each in sequences], pool.since)
        self._was_cached, self._told_at = states == BlockState.CACHED, pool.now
        return self._slots

    def _cells(
        self,
        snapshot: CacheSnapshot,
        layout: CacheMap,
        slots: OwnSlots,
        is_own: NDArray[np.bool_],
        states: NDArray[np.uint8],
    ) -> Cells:
        assert self._lost_at is not None
        pool = snapshot.pool
        own = np.flatnonzero(is_own).astype(np.int32)
        places = slots.slots_of(own)
        shown = np.zeros(pool.num_blocks, np.uint8)
        shown[places] = states[own]
        age_s = np.zeros(pool.num_blocks)
        age_s[places] = pool.now - pool.since[own]
        owners = (shown > 0).astype(np.int32)
        return layout.cells(shown, owners, age_s, pool.now - self._lost_at)


def _news(
    snapshot: CacheSnapshot,
    *,
    is_operator: bool,
    states: NDArray[np.uint8],
    tenants: list[TenantNews],
    lookups: LookupCounts,
    sequences: list[SequenceNews],
    num_running: int,
    num_waiting: int,
    map: MapNews,
) -> CacheNews:
    counts = np.bincount(states, minlength=len(BlockState)).tolist()
    return CacheNews(
        is_operator=is_operator,
        num_blocks=snapshot.pool.num_blocks,
        block_size=snapshot.block_size,
        cached=counts[BlockState.CACHED],
        held=counts[BlockState.HELD],
        shared=counts[BlockState.SHARED],
        hinted=snapshot.num_hinted if is_operator else None,
        tenants=tenants,
        found=lookups.num_found,
        missed={cause: number for cause, number in lookups.missed().items() if number},
        num_running=num_running,
        num_waiting=num_waiting,
        sequences=sequences,
        map=map,
    )


def _map(layout: CacheMap, cells: Cells) -> MapNews:
    return MapNews(
        num_cells=layout.num_cells,
        blocks_per_cell=layout.blocks_per_cell,
        packed=packed(cells),
    )


def _sequences(
    sequences: Sequence[SequenceSnapshot],
    tenants: Sequence[str],
    layout: CacheMap,
    places: Places,
) -> list[SequenceNews]:
    """The first of them; `places` are where blocks are shown."""
    sequences = sequences[:MOST_SEQUENCES]
    runs = layout.runs([places(each.block_ids) for each in sequences])
    return [
        SequenceNews(
            id=each.request_id,
            index=each.index,
            owner=min(_number(tenants, each.tenant), LAST_OWNER),
            computed=each.num_computed,
            tokens=each.num_tokens,
            prompt=each.num_prompt,
            cached=each.num_cached,
            num_blocks=int(np.count_nonzero(each.block_ids >= 0)),
            cells=cells,
        )
        for each, cells in zip(sequences, runs, strict=True)
    ]


def _number(tenants: Sequence[str], tenant: str) -> int:
    """The number that a tenant's blocks have; -1 for one that never had a block."""
    return tenants.index(tenant) + 1 if tenant in tenants else -1


def _tenant(name: str, holding: Holding) -> TenantNews:
    return TenantNews(
        name=name,
        held=holding.num_held,
        cached=holding.num_cached,
        evicted_for_own=holding.num_evicted_for_own,
        evicted_for_others=holding.num_evicted_for_others,
    )


def _all_tenants(snapshot: CacheSnapshot) -> list[TenantNews]:
    """By their numbers."""
    names, holdings = snapshot.pool.tenants, snapshot.holdings
    if len(names) <= LAST_OWNER:
        return [_tenant(name, holdings[name]) for name in names]
    named, others = names[: LAST_OWNER - 1], names[LAST_OWNER - 1 :]
    together = Holding(*map(sum, zip(*(holdings[name] for name in others), strict=True)))
    return [*(_tenant(name, holdings[name]) for name in named), _tenant("others", together)]
