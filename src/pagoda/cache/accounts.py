"""Who has which blocks, and for how long: each block is one tenant's, whoever of it shares it.

A tenant's blocks over time, held by its sequences or only cached:

    blocks  4 |        cccccccc
            3 |    hhhhhhhhcccccc
            2 |  hhhhhhhhhhhhcccccccc        held    block-seconds: area of h
            1 |  hhhhhhhhhhhhhhhhcccc        cached  block-seconds: area of c
              └──────────────────────── s
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

NOBODY = 0
"""The owner of a blank block."""


class Holding(NamedTuple):
    """What a tenant has now, and what it has had since the start."""

    num_held: int
    """Blocks that its sequences hold; one that several share counts once."""
    num_cached: int
    """Blocks that can only be found."""
    held_block_seconds: float
    cached_block_seconds: float
    num_evicted_for_own: int = 0
    """Blocks of its own that were evicted and that its own sequences took."""
    num_evicted_for_others: int = 0
    """Those that other tenants' sequences took."""


NOTHING = Holding(0, 0, 0.0, 0.0)


class Account:
    """One tenant's blocks, added up over time. One thread moves them; any may read."""

    __slots__ = ("_state", "number", "tenant")

    def __init__(self, tenant: str, number: int, now: float) -> None:
        """`number`: of the tenant, by which blocks name their owner."""
        self.tenant = tenant
        self.number = number
        self._state = (now, 0, 0, 0.0, 0.0, 0, 0)
        """When it changed last, and a `Holding` as of then: one object, replaced as a whole."""

    def move(
        self, now: float, held: int, cached: int, own_evicted: int = 0, others_evicted: int = 0
    ) -> None:
        """So many blocks more, or fewer, are held and cached from `now` on; those that are no more
        were perhaps evicted, for its own sequences or for others'."""
        since, num_held, num_cached, held_s, cached_s, for_own, for_others = self._state
        seconds = now - since
        self._state = (
            now,
            num_held + held,
            num_cached + cached,
            held_s + num_held * seconds,
            cached_s + num_cached * seconds,
            for_own + own_evicted,
            for_others + others_evicted,
        )

    def as_of(self, clock: Callable[[], float]) -> Holding:
        """What there is and has been, consistent whoever asks meanwhile. Changes nothing."""
        now = clock()  # before the state, or a later look might tell less
        since, num_held, num_cached, held_s, cached_s, for_own, for_others = self._state
        seconds = max(0.0, now - since)
        held_s, cached_s = held_s + num_held * seconds, cached_s + num_cached * seconds
        return Holding(num_held, num_cached, held_s, cached_s, for_own, for_others)

    @property
    def holding(self) -> Holding:
        """As of the last move."""
        return Holding(*self._state[1:])


class Accounts:
    """The accounts of all tenants that ever had a block."""

    def __init__(self, num_blocks: int, clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._by_number: list[Account] = []
        self.owners = array("i", bytes(array("i").itemsize * num_blocks))
        """By block: the number of its tenant, from 1 on, or `NOBODY`; to be read alone."""
        self.since = array("d", [clock()]) * num_blocks
        """By block: when it was last taken, found, kept or lost; likewise."""
        self.lost_at = array("d", [-math.inf]) * num_blocks
        """By block: when what it held was last evicted or forgotten; likewise."""

    @property
    def now(self) -> float:
        """What the clock says."""
        return self._clock()

    @property
    def tenants(self) -> tuple[str, ...]:
        """By their numbers, the first of which is 1."""
        return tuple(account.tenant for account in self._by_number)

    def taken(self, block_id: int, tenant: str) -> None:
        """A block that nobody had is held."""
        now = self._clock()
        account = self._accounts.get(tenant)
        if account is None:
            number = len(self._by_number) + 1
            account = self._accounts[tenant] = Account(tenant, number, now)
            self._by_number.append(account)
        account.move(now, 1, 0)
        self.owners[block_id] = account.number
        self.since[block_id] = now

    def found(self, block_id: int) -> None:
        """A cached block is held again."""
        now = self.since[block_id] = self._clock()
        self._owner(block_id).move(now, 1, -1)

    def kept(self, block_id: int) -> None:
        """A block that was held is cached."""
        now = self.since[block_id] = self._clock()
        self._owner(block_id).move(now, -1, 1)

    def given_back(self, block_id: int) -> None:
        """A block that was held is nobody's."""
        now = self.since[block_id] = self._clock()
        self._owner(block_id).move(now, -1, 0)
        self.owners[block_id] = NOBODY

    def lost(self, block_id: int) -> None:
        """A block that was cached is nobody's."""
        now = self.since[block_id] = self.lost_at[block_id] = self._clock()
        self._owner(block_id).move(now, 0, -1)
        self.owners[block_id] = NOBODY

    def evicted(self, block_id: int, by: str) -> None:
        """A block that was cached is given up for a sequence of tenant `by`."""
        now = self.since[block_id] = self.lost_at[block_id] = self._clock()
        owner = self._owner(block_id)
        is_own = owner.tenant == by
        owner.move(now, 0, -1, own_evicted=is_own, others_evicted=not is_own)
        self.owners[block_id] = NOBODY

    def clear(self) -> None:
        """Nobody has a block; what was had before stays."""
        now = self._clock()
        for account in self._accounts.values():
            account.move(now, -account.holding.num_held, -account.holding.num_cached)
        self.owners = array("i", bytes(self.owners.itemsize * len(self.owners)))
        self.since = array("d", [now]) * len(self.owners)

    def tenant_of(self, block_id: int) -> str | None:
        """Whose a block is; None: nobody's."""
        number = self.owners[block_id]
        return None if number == NOBODY else self._by_number[number - 1].tenant

    def holdings(self) -> Mapping[str, Holding]:
        """By tenant, as of now; any thread may ask."""
        return {tenant: each.as_of(self._clock) for tenant, each in list(self._accounts.items())}

    def _owner(self, block_id: int) -> Account:
        number = self.owners[block_id]
        assert number != NOBODY, f"block {block_id} is nobody's"
        return self._by_number[number - 1]
