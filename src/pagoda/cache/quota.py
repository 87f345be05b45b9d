"""What a tenant may have of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagoda.errors import InvalidOptionError


def _require_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        limit = f"must be a whole number of blocks, at least {least}"
        raise InvalidOptionError(name, value, limit)


@dataclass(frozen=True, slots=True)
class Quota:
    """Bounds of one tenant, in blocks. Raises `InvalidOptionError` for a floor above the cap."""

    floor: int = 0
    """Blocks that are the tenant's whoever else wants them, held and cached together, held ones
    first: it can hold that many at any time, and as many cached ones as it holds fewer are evicted
    by nobody else. Others may cache in what it has not taken."""
    cap: int | None = None
    """Most that it has, held and cached together; None: as many as there are."""

    def __post_init__(self) -> None:
        _require_whole("floor", self.floor, 0)
        if self.cap is not None:
            _require_whole("cap", self.cap, 1)
            if self.cap < self.floor:
                raise InvalidOptionError(
                    "cap", self.cap, f"must be at least the floor {self.floor}"
                )


NO_QUOTA = Quota()


def require_quotas(quotas: Mapping[str, Quota], num_blocks: int, most: int = 1) -> None:
    """Every tenant, named or not, can get `most` blocks of `num_blocks` at once.

    Raises `InvalidOptionError` for a cap below that, and for floors that leave others less.
    """
    if not isinstance(quotas, Mapping) or not all(
        isinstance(tenant, str) and isinstance(quota, Quota) for tenant, quota in quotas.items()
    ):
        raise InvalidOptionError("quotas", quotas, "must be a mapping from tenants to Quota")
    floors = sum(quota.floor for quota in quotas.values())
    if quotas and num_blocks - floors < most:
        limit = (
            f"must leave others the {most} blocks of one longest request: "
            f"those of all tenants together at most {num_blocks - most} of the {num_blocks} blocks"
        )
        raise InvalidOptionError("floor", floors, limit)
    for tenant, quota in quotas.items():
        if quota.cap is not None and quota.cap < most:
            limit = f"of {tenant!r} must be at least {most}, the blocks of one longest request"
            raise InvalidOptionError("cap", quota.cap, limit)
