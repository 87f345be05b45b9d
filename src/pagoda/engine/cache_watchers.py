"""Who is told what becomes of an engine's blocks."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.cache.curve import HitRateCurve
from pagoda.cache.explainer import MissExplainer
from pagoda.cache.watcher import CacheWatcher
from pagoda.engine.block_lives import BlockLives


@dataclass(frozen=True, slots=True)
class CacheWatchers:
    """Those of one cache, which others ask later."""

    misses: MissExplainer
    lives: BlockLives
    curve: HitRateCurve | None

    @classmethod
    def of(
        cls, num_blocks: int, block_size: int, eviction_policy: str, *, has_quotas: bool
    ) -> CacheWatchers:
        """Without a curve beside quotas: its shadows know none, and would be no other size of such
        a cache."""
        curve = None if has_quotas else HitRateCurve(num_blocks, block_size, eviction_policy)
        return cls(MissExplainer(num_blocks, block_size), BlockLives(), curve)

    @property
    def all(self) -> tuple[CacheWatcher, ...]:
        """In the order in which they are told."""
        if self.curve is None:
            return (self.misses, self.lives)
        return (self.misses, self.curve, self.lives)
