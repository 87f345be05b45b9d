"""Which frame of a bounded tier goes for another: the least recently used that shares let go.

Labels of namespaces are small and tell what all the others are: they go last of all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pagoda.tiers.names import owner_of
from pagoda.tiers.namespace import is_label
from pagoda.tiers.shares import NO_SHARE, NO_SHARES, Shares

_LABELS = "labels"
"""In place of an owner: no tenant's tag is such."""


class _Used(NamedTuple):
    num_bytes: int
    turn: int
    """Of its last use: later ones have higher numbers."""


@dataclass(slots=True)
class _OfOwner:
    """The frames of one tenant with a share, or of all others."""

    frames: OrderedDict[str, _Used] = field(default_factory=OrderedDict)
    """By their names, the least recently used first."""
    num_bytes: int = 0

    @property
    def oldest(self) -> _Used:
        return next(iter(self.frames.values()))


class UseOrder:
    """Names of frames, and how many bytes each takes. For one thread at a time."""

    def __init__(self, capacity_bytes: int, shares: Shares = NO_SHARES) -> None:
        """`shares`: of the capacity, by what stands for tenants in names."""
        self._capacity_bytes = capacity_bytes
        self._shares = shares
        self._owners: dict[str, _OfOwner] = {}
        self._turn = 0
        self.num_bytes = 0

    def put(self, name: str, num_bytes: int) -> None:
        """A frame is there, and used just now."""
        self.drop(name)
        owner = self._owners.setdefault(self._owner(name), _OfOwner())
        self._turn += 1
        owner.frames[name] = _Used(num_bytes, self._turn)
        owner.num_bytes += num_bytes
        self.num_bytes += num_bytes

    def use(self, names: Iterable[str]) -> None:
        """Those that are there are used, one after the other."""
        for name in names:
            owner = self._owners.get(self._owner(name))
            if owner is not None and name in owner.frames:
                self._turn += 1
                owner.frames[name] = owner.frames[name]._replace(turn=self._turn)
                owner.frames.move_to_end(name)

    def drop(self, name: str) -> bool:
        """A frame is gone; False: it was not known."""
        owner = self._owners.get(self._owner(name))
        used = None if owner is None else owner.frames.pop(name, None)
        if owner is None or used is None:
            return False
        owner.num_bytes -= used.num_bytes
        self.num_bytes -= used.num_bytes
        return True

    def clear(self) -> None:
        self._owners.clear()
        self.num_bytes = 0

    def next_to_go(self, name: str, num_bytes: int, room: int) -> str | None:
        """Whose place a frame of that name and size takes in `room` bytes; None: there is room.

        Its own tenant's, where that has all that its cap allows; otherwise the one that was used
        least recently of tenants that have more than their floors.
        """
        taker = self._owner(name)
        own, cap = self._owners.get(taker), self._shares.get(taker, NO_SHARE).cap
        most = None if cap is None else cap * self._capacity_bytes
        if own is not None and own.frames and most is not None and own.num_bytes + num_bytes > most:
            return next(iter(own.frames))
        if not self.num_bytes or self.num_bytes + num_bytes <= room:
            return None
        holders = {owner: each for owner, each in self._owners.items() if each.frames}
        if len(holders) > 1:
            holders.pop(_LABELS, None)
        givers = [
            each for owner, each in holders.items() if owner == taker or self._gives(owner, each)
        ]
        giver = min(givers or holders.values(), key=lambda each: each.oldest.turn)
        return next(iter(giver.frames))

    def _gives(self, owner: str, each: _OfOwner) -> bool:
        """What is left after its oldest frame is no less than its floor."""
        floor = self._shares.get(owner, NO_SHARE).floor * self._capacity_bytes
        return each.num_bytes - each.oldest.num_bytes >= floor

    def _owner(self, name: str) -> str:
        """Of those that have a share; "" stands for all others, but for labels."""
        if is_label(name):
            return _LABELS
        owner = owner_of(name)
        return owner if owner in self._shares else ""
