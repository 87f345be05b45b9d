"""What is remembered of blocks that were given up."""

from __future__ import annotations

from array import array
from typing import NamedTuple

_NO_PLACE = -1


class Ghost(NamedTuple):
    """A block that was given up."""

    kind: int
    last_used: int
    num_uses: int


class Ghosts:
    """The last so many blocks that were given up, by what they held. Some 150 bytes each."""

    def __init__(self, num_ghosts: int) -> None:
        self._places: dict[int, int] = {}
        self._next = 0
        # Of each place, the oldest of which is taken next:
        self._keys = array("Q", bytes(8 * num_ghosts))
        self._kinds = array("b", bytes(num_ghosts))
        self._last_used = array("q", bytes(8 * num_ghosts))
        self._num_uses = array("q", bytes(8 * num_ghosts))

    def put(self, key: int, ghost: Ghost) -> Ghost | None:
        """Remember a block; returns the one that is forgotten for it."""
        place, self._next = self._next, (self._next + 1) % len(self._keys)
        oldest = self._keys[place]
        forgotten = self.pop(oldest) if self._places.get(oldest, _NO_PLACE) == place else None
        self._keys[place], self._kinds[place] = key, ghost.kind
        self._last_used[place], self._num_uses[place] = ghost.last_used, ghost.num_uses
        self._places[key] = place
        return forgotten

    def pop(self, key: int) -> Ghost | None:
        """Forget what held that, and return it; None if it is not remembered."""
        place = self._places.pop(key, None)
        if place is None:
            return None
        return Ghost(self._kinds[place], self._last_used[place], self._num_uses[place])

    def __len__(self) -> int:
        return len(self._places)
