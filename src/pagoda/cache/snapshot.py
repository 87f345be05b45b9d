"""Every block of a pool at one moment, for whoever draws it.

block        0       1       2       3       4
ref_counts   1       2       0       0       0
owners       1       1       2       1       0
state        held    shared  cached  cached  blank
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pagoda.cache.accounts import NOBODY

if TYPE_CHECKING:
    from pagoda.cache.prefix_pool import PrefixPool


class BlockState(IntEnum):
    """What a block is worth, least first."""

    BLANK = 0
    CACHED = 1
    HELD = 2
    """By one sequence."""
    SHARED = 3
    """Held by several sequences of its tenant."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolSnapshot:
    """Copies, by block id. Times are seconds of the cache's clock."""

    now: float
    tenants: tuple[str, ...]
    """Of the owners' numbers, the first of which is 1."""
    ref_counts: NDArray[np.int32]
    owners: NDArray[np.int32]
    """Whose a block is, by the tenant's number; `NOBODY` of a blank one."""
    since: NDArray[np.float64]
    """When a block was last taken, found again, kept or lost."""
    lost_at: NDArray[np.float64]
    """When what a block held was last evicted or forgotten; minus infinity: never."""

    @classmethod
    def of(cls, blocks: PrefixPool) -> PoolSnapshot:
        """As of now."""
        accounts = blocks.accounts
        return cls(
            accounts.now,
            accounts.tenants,
            _copy(blocks.pool.ref_counts, np.int32),
            _copy(accounts.owners, np.int32),
            _copy(accounts.since, np.float64),
            _copy(accounts.lost_at, np.float64),
        )

    @property
    def num_blocks(self) -> int:
        return len(self.owners)

    def states(self) -> NDArray[np.uint8]:
        """The `BlockState` of each block."""
        states: NDArray[np.uint8] = (self.owners != NOBODY).astype(np.uint8)
        states += self.ref_counts > 0
        states += self.ref_counts > 1
        return states


def _copy(values: array[Any], dtype: type[Any]) -> NDArray[Any]:
    return np.frombuffer(values, dtype).copy()
