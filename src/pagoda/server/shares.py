"""What tenants share: so much of something, of which each holds a part."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from pagoda.server.error_codes import SERVER_FULL, TENANT_FULL
from pagoda.server.errors import RejectedError


class Shares:
    """So much of something, of which each tenant may hold a share.

    Without a bound of its own a tenant may hold all of it, but where several share it, no more than
    it leaves free, and one: the more of them want some, the less each of them gets. Whoever comes
    finds half of what is left, so some log2(`most`) tenants that all take what they may fill it.
    The rule is that of shared buffers in network switches (Choudhury and Hahne 1998, Dynamic queue
    length thresholds).
    """

    def __init__(
        self,
        most: int,
        what: str,
        *,
        is_shared: bool,
        most_per_tenant: int | None = None,
        num_rejected: Counter[str] | None = None,
    ) -> None:
        """`what` is told to those for whom nothing is left. They are counted in `num_rejected`, by
        the code that they are told."""
        self._most = most
        self._what = what
        self._is_shared = is_shared
        self._most_per_tenant = most_per_tenant
        self._num_rejected = Counter() if num_rejected is None else num_rejected
        self._held: Counter[str] = Counter()
        """By tenant."""

    @property
    def most_of_one(self) -> int:
        """What a tenant may hold where no other holds anything."""
        if self._most_per_tenant is not None:
            return min(self._most, self._most_per_tenant)
        return (self._most + 1) // 2 if self._is_shared else self._most

    def has(self, tenant: str, num: int, given_back: int = 0) -> bool:
        """There is so much left for this tenant, once it has given back so much.

        0 of it is left even for a tenant whose share has shrunk below what it holds.
        """
        more = num - given_back
        num_free = self._num_free - more
        is_within = self._held[tenant] + more <= self._most_beside(num_free)
        return num == 0 or (num_free >= 0 and is_within)

    def take(self, tenant: str, num: int) -> None:
        """Raises `RejectedError` where there is not so much left for this tenant."""
        if not self.has(tenant, num):
            error = self._refusal(tenant, num)
            self._num_rejected[error.code] += 1
            raise error
        self._held[tenant] += num

    def give_back(self, tenant: str, num: int) -> None:
        self._held[tenant] -= num
        if not self._held[tenant]:
            del self._held[tenant]

    def holding(self, tenant: str) -> Holding:
        """A part of this tenant's share, with nothing in it yet."""
        return Holding(self, tenant)

    @property
    def _num_free(self) -> int:
        return self._most - self._held.total()

    def _most_beside(self, num_free: int) -> int:
        """What a tenant may hold where so much is left to others."""
        if self._most_per_tenant is not None:
            return self._most_per_tenant
        return num_free + 1 if self._is_shared else self._most

    def _refusal(self, tenant: str, num: int) -> RejectedError:
        if num > self._num_free:
            limit = f"the server takes {self._most:,} {self._what}, of all clients together"
            return RejectedError(503, SERVER_FULL, limit)
        limit = f"this tenant has {self._held[tenant]:,} {self._what} and "
        if self._most_per_tenant is not None:
            limit += f"may have {self._most_per_tenant:,}"
        else:
            limit += f"must leave as many of the {self._most:,} to others"
        return RejectedError(429, TENANT_FULL, limit)


class Holding:
    """What one request holds of its tenant's share, given back when a block over it ends."""

    def __init__(self, shares: Shares, tenant: str) -> None:
        self._shares = shares
        self._tenant = tenant
        self.num = 0

    def take(self, num: int) -> None:
        """Hold so much more. Raises `RejectedError` where there is not so much left."""
        self._shares.take(self._tenant, num)
        self.num += num

    def give_back(self) -> None:
        """Hold nothing; what was given back already is not given back again."""
        self._shares.give_back(self._tenant, self.num)
        self.num = 0

    def __enter__(self) -> Holding:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.give_back()
