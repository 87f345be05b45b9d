"""Blocks that a tenant's sequences may still take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

NOTHING_SPOKEN_FOR: Mapping[str, int] = MappingProxyType({})


class Allowance(NamedTuple):
    """What is not negative may be taken; both bounds hold."""

    in_pool: int
    """Blocks that are free and not due to others."""
    within_cap: int | None = None
    """What is left of the tenant's cap; None: it has none."""
    num_due: int = 0
    """Of those in the pool, the ones that are due to the tenant: nobody else may hold them."""

    @property
    def num_blocks(self) -> int:
        """What the tenant's sequences may take."""
        if self.within_cap is None:
            return self.in_pool
        return min(self.in_pool, self.within_cap)

    def due_alone(self) -> Allowance:
        """Of that, what nobody else may hold."""
        return self._replace(in_pool=min(self.in_pool, self.num_due))

    @property
    def is_capped(self) -> bool:
        """The tenant's cap leaves no more than the pool: others could not make room for it."""
        return self.within_cap is not None and self.within_cap <= self.in_pool

    @property
    def is_at_cap(self) -> bool:
        """Not one more is allowed."""
        return self.within_cap is not None and self.within_cap <= 0

    def awaits_pool(self, num_blocks: int) -> bool:
        """So many are not to be had before others let go of some: the cap would allow them."""
        is_allowed = self.within_cap is None or num_blocks <= self.within_cap
        return is_allowed and num_blocks > self.in_pool
