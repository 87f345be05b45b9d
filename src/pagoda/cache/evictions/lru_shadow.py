"""What a cache would hold that gives up the least recently used first, and how ours departs."""

from __future__ import annotations

from collections import OrderedDict


class LRUShadow:
    """Keys alone of a cache under LRU, beside the real one: a shadow that knows what that lacks.

        only in the real one │ in both          │ in the shadow alone: `num_apart`
        last used by `limit` │ used since `limit`

    A key of the shadow that the real cache gave up costs one hit at most: once it is used again,
    both have it. So whoever keeps `num_apart` small is never far behind LRU.
    """

    def __init__(self) -> None:
        self._last_used: OrderedDict[int, int] = OrderedDict()
        """Of each key; negative if the real cache gave it up. The least recently used first."""
        self.num_apart = 0
        self.limit = 0
        """When that was last used which the shadow gave up last."""

    def put(self, key: int, now: int) -> None:
        """A key is used no more for now, and stays until room is short."""
        self.drop(key)
        self._last_used[key] = now

    def drop(self, key: int) -> bool:
        """A key is used, or worth nothing any more; False if it is not here."""
        last_used = self._last_used.pop(key, None)
        if last_used is None:
            return False
        self.num_apart -= last_used < 0
        return True

    def given_up(self, key: int) -> None:
        """The real cache does not hold the key any more."""
        last_used = self._last_used.get(key, 0)
        if last_used > 0:
            self._last_used[key] = -last_used
            self.num_apart += 1

    def shrink(self, num_keys: int) -> None:
        """Give up keys until so many are left."""
        while len(self._last_used) > num_keys:
            _, last_used = self._last_used.popitem(last=False)
            self.num_apart -= last_used < 0
            self.limit = abs(last_used)
