"""How far a cache may depart from LRU: as far as it earned, and as evidence allows."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.cache.evictions.age_lists import AgeLists
from pagoda.cache.evictions.lru_shadow import LRUShadow

_SAMPLE = 4096
"""Keys that each shadow follows, at most: all of a small pool."""
_MARGIN = 0.002
"""Part of the uses by which an order has to lead to be believed or dropped."""
_BELIEF = 1.0
"""Standard deviations of chance that such a lead has to exceed as well."""
_STAKE = 0.003
"""Part of the uses that may be lost to LRU for good."""
_SURE = 2.0
"""Standard deviations by which a lead is beyond chance."""
_TRUST = 2.0
"""Blocks that may be apart for each hit of a lead beyond chance."""
_HALF_LIFE = 8.0
"""Pools of blocks released until a hit of a shadow counts half."""
_ACCOUNT_HALF_LIFE = 32.0
"""The same for what was really won and lost."""
_SPREAD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: neighbouring keys end up far apart


class Duel:
    """A ranked order against LRU, by shadows of both and by what the real cache found.

        shadows   ranked ─┐  lead, and how much of it may be chance
                  LRU ────┤
        real cache ───────┘  won: hits beyond those of LRU; apart: hits that may still be lost

    The order is obeyed while `apart` is below what may be lost: a small part of the uses, what was
    won, and twice the lead that is beyond chance. So a bad order costs that part and no more,
    whatever comes. Sampling by key as in Waldspurger et al., SHARDS, FAST 2015.
    """

    def __init__(self, num_blocks: int, ranked: AgeLists) -> None:
        """`ranked`: an empty one, which the order is told as well."""
        self._every = -(-num_blocks // _SAMPLE)
        self._num_blocks = num_blocks
        self._by_use = LRUShadow()
        self._ranked = ranked
        self._num_held = 0
        """Keys that the real cache holds and nobody uses: shadows have room for as many."""
        self._lead = self._num_uses = self._noise = self._lead_of_request = 0.0
        self._won = self._num_accounted = self._may_be_apart = 0.0
        self._is_ranked_better = False

    def follows(self, key: int) -> bool:
        """The key is in the sample; of others nothing is told."""
        return not (key * _SPREAD >> 32 & 0xFFFFFFFF) % self._every

    def used(self, key: int, *, is_found: bool) -> None:
        """A key is used from now on; the real cache held it or did not."""
        is_found_by_use = self._by_use.drop(key)
        lead = self._ranked.drop(key) - is_found_by_use
        self._lead += lead
        self._lead_of_request += lead
        self._won += is_found - is_found_by_use
        self._num_uses += 1
        self._num_accounted += 1
        self._num_held -= is_found

    def released(self, key: int, kind: int, now: int) -> None:
        """A key that was used is used no more, and held."""
        self._by_use.shrink(self._num_held)
        while len(self._ranked) > self._num_held:
            self._ranked.pop()
        self._num_held += 1
        self._by_use.put(key, now)
        self._ranked.drop(key)
        self._ranked.put(key, kind, now)

    def end_request(self) -> None:
        """What one request used goes together: its lead is one draw."""
        self._noise += self._lead_of_request**2
        self._lead_of_request = 0.0

    def given_up(self, key: int) -> None:
        """The real cache gave up a key that it held."""
        self._num_held -= 1
        self._by_use.given_up(key)

    def forgotten(self, key: int) -> None:
        """A key that was held is worth nothing any more, for anybody."""
        self._num_held -= 1
        self._by_use.drop(key)
        self._ranked.drop(key)

    def may_go(self, now: int) -> int:
        """What was last used by then may be given up by the order: anything, or only what LRU
        would not hold either."""
        return now if self._by_use.num_apart < self._may_be_apart else self._by_use.limit

    def judge(self, now: int, order: Sequence[tuple[int, int]], num_released: int) -> None:
        """Say how far the order is believed, let what was count less, and go on by another."""
        chance = self._noise**0.5
        if abs(self._lead) > _MARGIN * self._num_uses + _BELIEF * chance:
            self._is_ranked_better = self._lead > 0
        self._may_be_apart = 0.0
        if self._is_ranked_better:
            beyond_chance = max(0.0, self._lead - _SURE * chance)
            stake = _STAKE * self._num_accounted
            self._may_be_apart = stake + self._won + _TRUST * beyond_chance
        self._fade(num_released / self._num_blocks)
        self._ranked.age(now)
        self._ranked.rank(order)

    def _fade(self, num_pools: float) -> None:
        keep = 0.5 ** (num_pools / _HALF_LIFE)
        self._lead *= keep
        self._num_uses *= keep
        self._noise *= keep
        keep = 0.5 ** (num_pools / _ACCOUNT_HALF_LIFE)
        self._won *= keep
        self._num_accounted *= keep
