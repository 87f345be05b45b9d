"""The miss-ratio curve of a cache that is in use: what it would find if it were smaller or larger.

    blocks of sequences ── a sample, by their hashes ──> path ──> a shadow for each size and policy
    the cache itself ───── found of the same sample ─────────────────────────────┐
                                                                                 ▼
    hit rate at a size  =  the cache's own  +  what its shadow found more of the sample / rate

Whether a block is in the sample depends on its hash alone, so a block that comes again is in it
again, and shadows are as much smaller than the pools that they stand for. After Waldspurger et al.,
SHARDS, FAST 2015, with one thing more: all that a shadow is asked is how it differs from the cache.
What everybody shares is found by both and adds nothing, whether or not it is in the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from pagoda.cache import checks
from pagoda.cache.block import BlockTable
from pagoda.cache.origin import Origin
from pagoda.cache.prefix import BlockHash, BlockKey
from pagoda.cache.shadow import Shadow, shadow_of
from pagoda.cache.watcher import Lookup
from pagoda.errors import InvalidOptionError

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Sizes that are followed, in pools."""
_SAMPLE = 1024
"""Blocks of a pool that are followed; of a smaller pool all."""
_HALF_LIFE = 8.0
"""Pools of tokens looked up until a lookup counts half: as many as the largest size holds."""
_SPREAD = 0x9E3779B1  # 2**32 / golden ratio: names of blocks that are but numbers end up far apart
_NUM_HASHES = 2**32


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What a pool of some size and policy would have found lately."""

    multiple: float
    """Its size, in pools of the cache."""
    num_blocks: int
    policy: str
    hit_rate: float | None
    """Tokens found of those looked up, 0 to 1; None: nothing was looked up."""


@dataclass(slots=True)
class _Followed:
    """A size and policy, and how much more it has found than the cache."""

    multiple: float
    policy: str
    shadow: Shadow | None
    """None: it is the cache's own."""
    lead: float = 0.0
    """Blocks of the sample; later ones count more."""


class HitRateCurve:
    """Says what other sizes would find, under the cache's own policy and LRU. A `CacheWatcher`.

    It covers what came lately: a lookup counts half once eight pools of tokens have been looked up
    since. Sequences take no time in a shadow: what runs is never too much for a small one, and may
    be given up there. In models with windows, whole prefixes are followed as if every block had to
    be there and nothing but them took room. Memory is bounded, whatever the pool: shadows have
    16,000 blocks at most for each policy, of some 0.3 KB and what the policy takes.

    One thread tells it what happens; any may read the figures.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        policy: str = "lru",
        *,
        sample: int = _SAMPLE,
        half_life: float = _HALF_LIFE,
    ) -> None:
        """`num_blocks` of `block_size` tokens are the cache's, `policy` is the name of its own.

        `sample`: blocks of a pool that are followed. `half_life`: pools of tokens looked up until a
        lookup counts half. Raises `InvalidOptionError` for what no cache has, and for less than a
        block or no time.
        """
        checks.require_options(num_blocks, block_size, True)
        checks.require_texts(eviction=policy)
        for name, value, least in (("sample", sample, 1), ("half_life", half_life, 1e-9)):
            if not value >= least:
                raise InvalidOptionError(name, value, f"must be at least {least:g}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.policy = policy
        self.sampling_rate = min(1.0, sample / num_blocks)
        """Share of all blocks that are followed."""
        self.half_life_tokens = half_life * num_blocks * block_size
        """Tokens looked up until a lookup counts half."""
        self.num_requests = self.num_tokens = self.num_sampled_tokens = 0
        """Sequences that were looked up since the start, their tokens, and those followed."""
        self._below = round(self.sampling_rate * _NUM_HASHES)
        self._tokens = self._found = 0.0
        """Looked up and found lately."""
        self._followed = [
            self._follow(multiple, name)
            for name in dict.fromkeys((policy, "lru"))
            for multiple in MULTIPLES
        ]
        self._shadows = [(each, each.shadow) for each in self._followed if each.shadow is not None]

    def points(self) -> tuple[CurvePoint, ...]:
        """Each size under the cache's own policy, then under LRU if that is another."""
        return tuple(
            CurvePoint(
                each.multiple,
                max(1, round(each.multiple * self.num_blocks)),
                each.policy,
                self._hit_rate(each.lead),
            )
            for each in self._followed
        )

    # ---- what a cache tells ------------------------------------------------------------------

    def looked_up(self, lookup: Lookup) -> None:
        if not (lookup.is_caching and lookup.is_read):
            return
        keys, num_found = lookup.table.keys, lookup.num_found_blocks
        found = self._path(keys[:num_found])
        path = [*found, *self._path(keys[num_found:])]
        keep = 0.5 ** (lookup.num_tokens / self.half_life_tokens)
        for each, shadow in self._shadows:
            each.lead = each.lead * keep + shadow.look_up(path) - len(found)
        self._tokens = self._tokens * keep + lookup.num_tokens
        self._found = self._found * keep + lookup.num_found
        self.num_requests += 1
        self.num_tokens += lookup.num_tokens
        self.num_sampled_tokens += len(path) * self.block_size

    def freed(self, table: BlockTable) -> None:
        """What was said since then is there from now on, too."""
        path = self._path(table.keys[: table.num_committed])
        for _, shadow in self._shadows if path else ():
            shadow.renew(path)

    def cleared(self) -> None:
        for _, shadow in self._shadows:
            shadow.clear()

    def stored(self, key: BlockKey, group: int, table: BlockTable) -> None:
        """A shadow has whole sequences."""

    def reused(self, idle_s: float) -> None:
        """A shadow has no clock."""

    def evicted(self, key: BlockKey, group: int, idle_s: float, by: Origin) -> None:
        """A shadow evicts by itself."""

    # ---- inside ------------------------------------------------------------------------------

    def _follow(self, multiple: float, policy: str) -> _Followed:
        if multiple == 1.0 and policy == self.policy:
            return _Followed(multiple, policy, None)
        room = max(1, round(multiple * self.num_blocks * self.sampling_rate))
        return _Followed(multiple, policy, shadow_of(room, policy))

    def _path(self, keys: Sequence[BlockKey]) -> list[BlockHash]:
        """Hashes of the blocks that are in the sample."""
        below = self._below
        return [key.hash for key in keys if crc32(key.hash) * _SPREAD % _NUM_HASHES < below]

    def _hit_rate(self, lead: float) -> float | None:
        """Of what found so many blocks of the sample more than the cache."""
        if not self._tokens:
            return None
        num_tokens = self._found + lead * self.block_size / self.sampling_rate
        return min(1.0, max(0.0, num_tokens / self._tokens))
