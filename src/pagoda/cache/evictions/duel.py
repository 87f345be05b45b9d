"""Two orders of eviction on a sample of blocks: which of them would find more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pagoda.cache.evictions.age_lists import AgeLists

_SAMPLE = 1024
"""Blocks that each shadow follows, about."""
_MARGIN = 0.002
"""Part of the uses by which an order has to lead."""
_DEVIATIONS = 1.0
"""Standard deviations of chance that a lead has to exceed as well."""
_HALF_LIFE = 8.0
"""Pools of blocks released until a hit counts half."""
_SPREAD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: neighbouring keys end up far apart


class Duel:
    """Shadows of two caches that hold keys alone, a sample of them: LRU, and a ranked order.

    A challenger has to lead by more than chance to be believed, and to fall as far behind to be
    dropped. Sampling by key as in Waldspurger et al., SHARDS, FAST 2015.
    """

    def __init__(self, num_blocks: int, ranked: AgeLists) -> None:
        """`ranked`: an empty one, which the challenger's order is told as well."""
        self._every = max(1, round(num_blocks / _SAMPLE))
        self._room = max(1, num_blocks // self._every)
        self._num_blocks = num_blocks
        self._by_use: OrderedDict[int, None] = OrderedDict()
        self._ranked = ranked
        self._lead = self._num_uses = self._noise = self._lead_of_request = 0.0
        self.is_ranked_better = False

    def end_request(self) -> None:
        """What one request used goes together: its lead is one draw."""
        self._noise += self._lead_of_request**2
        self._lead_of_request = 0.0

    def use(self, key: int, kind: int, now: int) -> None:
        """A block was used; both shadows look for it, and hold it from now on."""
        if (key * _SPREAD >> 32 & 0xFFFFFFFF) % self._every:
            return
        self._num_uses += 1
        lead = self._find_by_rank(key, kind, now) - self._find_by_use(key)
        self._lead += lead
        self._lead_of_request += lead

    def judge(self, now: int, order: Sequence[tuple[int, int]], num_released: int) -> None:
        """Say who leads, let what was count less, and go on by another order."""
        enough = _MARGIN * self._num_uses + _DEVIATIONS * self._noise**0.5
        if abs(self._lead) > enough:
            self.is_ranked_better = self._lead > 0
        keep = 0.5 ** (num_released / (_HALF_LIFE * self._num_blocks))
        self._lead, self._num_uses = self._lead * keep, self._num_uses * keep
        self._noise *= keep
        self._ranked.age(now)
        self._ranked.rank(order)

    def _find_by_use(self, key: int) -> bool:
        if key in self._by_use:
            self._by_use.move_to_end(key)
            return True
        self._by_use[key] = None
        if len(self._by_use) > self._room:
            self._by_use.popitem(last=False)
        return False

    def _find_by_rank(self, key: int, kind: int, now: int) -> bool:
        is_found = self._ranked.drop(key)
        if not is_found and len(self._ranked) >= self._room:
            self._ranked.pop()
        self._ranked.put(key, kind, now)
        return is_found
