"""How many requests the server takes on, and when it takes no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pagoda.server.errors import RejectedError, ShuttingDownError

_CLOSED, _TENANT_FULL, _FULL = "server_shutting_down", "rate_limit_exceeded", "server_overloaded"
REJECTIONS = (_CLOSED, _TENANT_FULL, _FULL)
"""Codes of those who are not let in."""


class Admission:
    """Counts the requests that were taken and are not answered. For one event loop."""

    def __init__(self, most: int, most_per_tenant: int | None = None) -> None:
        """`most` in all, those that run and those that wait; and of one tenant."""
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._by_tenant: Counter[str] = Counter()
        self._is_closed = False
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.num_rejected: Counter[str] = Counter(dict.fromkeys(REJECTIONS, 0))
        """By the code that they were told."""

    @property
    def num_in_flight(self) -> int:
        return self._by_tenant.total()

    @property
    def is_closed(self) -> bool:
        """Nobody comes in any more."""
        return self._is_closed

    def close(self) -> None:
        """Let nobody in any more; who is in may finish."""
        self._is_closed = True

    async def emptied(self) -> None:
        """Wait until nobody is in."""
        await self._is_empty.wait()

    @contextmanager
    def entered(self, tenant: str) -> Iterator[None]:
        """Be in for as long as the block runs. Raises `RejectedError` where there is no room."""
        self._check(tenant)
        self._by_tenant[tenant] += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]
            if not self._by_tenant:
                self._is_empty.set()

    def _check(self, tenant: str) -> None:
        rejected: RejectedError | None = None
        if self._is_closed:
            rejected = ShuttingDownError()
        elif self._most_per_tenant is not None and self._by_tenant[tenant] >= self._most_per_tenant:
            limit = f"this key has {self._most_per_tenant} requests running, as many as it may"
            rejected = RejectedError(429, _TENANT_FULL, limit)
        elif self.num_in_flight >= self._most:
            limit = f"the server has {self._most} requests running or waiting, as many as it takes"
            rejected = RejectedError(503, _FULL, limit)
        if rejected is not None:
            self.num_rejected[rejected.code] += 1
            raise rejected
