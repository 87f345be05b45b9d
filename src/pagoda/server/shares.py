"""What tenants share: so much of something, of which each holds a part."""

from __future__ import annotations

from collections import Counter

from pagoda.server.errors import RejectedError

FULL = "server_overloaded"
"""The code of whoever is told that nothing is left."""


class Shares:
    """So much of something, of which each tenant holds a share."""

    def __init__(self, most: int, is_shared: bool, what: str) -> None:
        """`what` is told to whom there is nothing left for. Of several tenants that share the
        server each may have half of what the others leave free."""
        self._most = most
        self._is_shared = is_shared
        self._what = what
        self._held: Counter[str] = Counter()

    def has(self, tenant: str, num: int) -> bool:
        """There is so much left for this tenant."""
        held, num_free = self._held[tenant] + num, self._most - self._held.total() - num
        return num_free >= 0 and (not self._is_shared or held <= num_free + 1)

    def take(self, tenant: str, num: int) -> None:
        """Raises `RejectedError` where there is not so much left for this tenant."""
        if not self.has(tenant, num):
            limit = f"the server takes {self._most:,} {self._what}, of all clients together"
            raise RejectedError(503, FULL, limit)
        self._held[tenant] += num

    def give_back(self, tenant: str, num: int) -> None:
        self._held[tenant] -= num
        if not self._held[tenant]:
            del self._held[tenant]
