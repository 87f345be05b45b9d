"""The eviction policies, by the names that options give them: a policy is a file and a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pagoda.cache.eviction import EvictionPolicy
from pagoda.cache.evictions.arc import ARC
from pagoda.cache.evictions.density import Density
from pagoda.cache.evictions.gdsf import GDSF
from pagoda.cache.evictions.lfu import LFU
from pagoda.cache.evictions.lru import LRU
from pagoda.cache.evictions.s3fifo import S3FIFO
from pagoda.cache.evictions.slru import SegmentedLRU
from pagoda.errors import InvalidOptionError

POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {
    "arc": ARC,
    "density": Density,
    "gdsf": GDSF,
    "lfu": LFU,
    "lru": lambda num_blocks: LRU(),
    "s3fifo": S3FIFO,
    "slru": lambda num_blocks: SegmentedLRU(),
}
"""Each makes a policy for a pool of so many blocks."""

DEFAULT_POLICY = "density"
"""Of engines, servers and replays. `CacheManager` by itself takes `lru`, whose order is fixed."""


def eviction_policy(given: EvictionPolicy | str, num_blocks: int) -> EvictionPolicy:
    """A new policy for so many blocks by its name, or the one that is given.

    Raises `InvalidOptionError` for an unknown name and for what is no policy.
    """
    if isinstance(given, str) and given in POLICIES:
        return POLICIES[given](num_blocks)
    if isinstance(given, EvictionPolicy) and not isinstance(given, type):
        return given
    limit = f"one of {', '.join(POLICIES)}, or an object with the methods of EvictionPolicy"
    raise InvalidOptionError("eviction", given, limit)


def policies_of(
    given: EvictionPolicy | str, num_blocks: int, quotas: Mapping[str, object]
) -> Callable[[], EvictionPolicy]:
    """Makes the policies of a pool: one for each tenant with a quota, and one for all others.

    Raises `InvalidOptionError` as `eviction_policy` does, and for a policy that is given where
    several are needed.
    """
    first = eviction_policy(given, num_blocks)
    if isinstance(given, str):
        return lambda: eviction_policy(given, num_blocks)
    if quotas:
        limit = (
            "must be a name where tenants have quotas, for which there are policies of their own"
        )
        raise InvalidOptionError("eviction", given, limit)
    return lambda: _emptied(first, num_blocks)


def _emptied(policy: EvictionPolicy, num_blocks: int) -> EvictionPolicy:
    """It holds nothing any more."""
    for block_id in range(num_blocks):
        policy.forget(block_id)
    return policy
