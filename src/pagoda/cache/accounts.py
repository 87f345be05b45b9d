"""Who has which blocks, and for how long: each block is one tenant's, whoever of it shares it.

A tenant's blocks over time, held by its sequences or only cached:

    blocks  4 |        cccccccc
            3 |    hhhhhhhhcccccc
            2 |  hhhhhhhhhhhhcccccccc        held    block-seconds: area of h
            1 |  hhhhhhhhhhhhhhhhcccc        cached  block-seconds: area of c
              └──────────────────────── s
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple


class Holding(NamedTuple):
    """What a tenant has now, and what it has had since the start."""

    num_held: int
    """Blocks that its sequences hold; one that several share counts once."""
    num_cached: int
    """Blocks that can only be found."""
    held_block_seconds: float
    cached_block_seconds: float


NOTHING = Holding(0, 0, 0.0, 0.0)


class Account:
    """One tenant's blocks, added up over time. One thread moves them; any may read."""

    __slots__ = ("_state", "tenant")

    def __init__(self, tenant: str, now: float) -> None:
        self.tenant = tenant
        self._state = (now, NOTHING)

    def move(self, now: float, held: int, cached: int) -> None:
        """So many blocks more, or fewer, are held and cached from `now` on."""
        since, (num_held, num_cached, held_s, cached_s) = self._state
        seconds = now - since
        held_s, cached_s = held_s + num_held * seconds, cached_s + num_cached * seconds
        self._state = (now, Holding(num_held + held, num_cached + cached, held_s, cached_s))

    def as_of(self, clock: Callable[[], float]) -> Holding:
        """What there is and has been, consistent whoever asks meanwhile. Changes nothing."""
        since, (num_held, num_cached, held_s, cached_s) = self._state
        seconds = clock() - since
        return Holding(
            num_held, num_cached, held_s + num_held * seconds, cached_s + num_cached * seconds
        )

    @property
    def holding(self) -> Holding:
        """As of the last move."""
        return self._state[1]


class Accounts:
    """The accounts of all tenants that ever had a block."""

    def __init__(self, num_blocks: int, clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._owners: list[Account | None] = [None] * num_blocks
        """Of the blocks that are held or cached."""

    def taken(self, block_id: int, tenant: str) -> None:
        """A block that nobody had is held."""
        now = self._clock()
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = Account(tenant, now)
        account.move(now, 1, 0)
        self._owners[block_id] = account

    def found(self, block_id: int) -> None:
        """A cached block is held again."""
        self._owner(block_id).move(self._clock(), 1, -1)

    def kept(self, block_id: int) -> None:
        """A block that was held is cached."""
        self._owner(block_id).move(self._clock(), -1, 1)

    def given_back(self, block_id: int) -> None:
        """A block that was held is nobody's."""
        self._owner(block_id).move(self._clock(), -1, 0)
        self._owners[block_id] = None

    def lost(self, block_id: int) -> None:
        """A block that was cached is nobody's."""
        self._owner(block_id).move(self._clock(), 0, -1)
        self._owners[block_id] = None

    def clear(self) -> None:
        """Nobody has a block; what was had before stays."""
        now = self._clock()
        for account in self._accounts.values():
            account.move(now, -account.holding.num_held, -account.holding.num_cached)
        self._owners = [None] * len(self._owners)

    def tenant_of(self, block_id: int) -> str | None:
        """Whose a block is; None: nobody's."""
        owner = self._owners[block_id]
        return None if owner is None else owner.tenant

    def holdings(self) -> Mapping[str, Holding]:
        """By tenant, as of now; any thread may ask."""
        return {tenant: each.as_of(self._clock) for tenant, each in list(self._accounts.items())}

    def _owner(self, block_id: int) -> Account:
        owner = self._owners[block_id]
        assert owner is not None, f"block {block_id} is nobody's"
        return owner
