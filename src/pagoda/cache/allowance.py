"""Blocks that a tenant's sequences may still take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

NOTHING_SPOKEN_FOR: Mapping[str, int] = MappingProxyType({})


class Allowance(NamedTuple):
    """Neither number is below what the other leaves; a negative one is as good as 0."""

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

    def lacks_in_pool(self, num_blocks: int) -> bool:
        """So many are not to be had even if the tenant had no cap."""
        return num_blocks > self.in_pool
