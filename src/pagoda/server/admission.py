"""How many sequences the server takes on, and when it takes no more.

A request enters with one place, once its body is there, and takes the others when it is known how
many sequences it asks for: its prompts times `n`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pagoda.errors import InvalidRequestError
from pagoda.server.errors import RejectedError, ShuttingDownError

_CLOSED, _TENANT_FULL, _FULL = "server_shutting_down", "rate_limit_exceeded", "server_overloaded"
REJECTIONS = (_CLOSED, _TENANT_FULL, _FULL)
"""Codes of those who are not let in."""


class Admission:
    """Counts the requests that were taken and are not answered, and the places they hold.

    For one event loop.
    """

    def __init__(
        self, most: int, most_per_tenant: int | None = None, *, is_shared: bool = False
    ) -> None:
        """`most` places in all, for sequences that run and that wait; and of one tenant.

        Without a bound of its own a tenant may hold all of them, but where the server `is_shared`
        by several tenants, no more than it leaves free, and one: the more want places, the fewer
        each of them gets. Whoever comes finds half of what is left, so some log2(`most`) tenants
        that all take what they may fill the server. The rule is that of shared buffers in network
        switches (Choudhury and Hahne 1998, Dynamic queue length thresholds).
        """
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._is_shared = is_shared and most_per_tenant is None
        self._held: Counter[str] = Counter()
        """Places, by tenant."""
        self._num_admitted = 0
        self._is_closed = False
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.num_rejected: Counter[str] = Counter(dict.fromkeys(REJECTIONS, 0))
        """By the code that they were told."""

    @property
    def num_admitted(self) -> int:
        """Requests."""
        return self._num_admitted

    @property
    def most_of_one(self) -> int:
        """Places that a request can have where nobody else is in."""
        alone = (self._most + 1) // 2 if self._is_shared else self._most
        return min(alone, self._most_per_tenant or alone)

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

    def require_open(self) -> None:
        """Raises `RejectedError` once nobody comes in any more."""
        if self._is_closed:
            self._reject(ShuttingDownError())

    @contextmanager
    def entered(self, tenant: str, came_at: float | None = None) -> Iterator[Places]:
        """Be in for as long as the block runs. Raises `RejectedError` where no place is free.

        `came_at` is when the request came, in seconds of the event loop's clock; now without it.
        """
        self.require_open()
        came_at = asyncio.get_running_loop().time() if came_at is None else came_at
        places = Places(self, tenant, came_at)
        places.hold(1)
        self._num_admitted += 1
        self._is_empty.clear()
        try:
            yield places
        finally:
            self._num_admitted -= 1
            self.give_back(tenant, places.num_held)
            if not self._num_admitted:
                self._is_empty.set()

    def take(self, tenant: str, num: int) -> None:
        """Hold so many places more. Raises `RejectedError` where no place is free."""
        held = self._held[tenant] + num
        num_free = self._most - self._held.total() - num
        of_tenant = f"this tenant has {held - num} sequences running or waiting"
        if self._most_per_tenant is not None and held > self._most_per_tenant:
            limit = f"{of_tenant} and may have {self._most_per_tenant}"
            self._reject(RejectedError(429, _TENANT_FULL, limit))
        if num_free < 0:
            limit = f"the server takes {self._most} sequences, running and waiting ones together"
            self._reject(RejectedError(503, _FULL, limit))
        if self._is_shared and held > num_free + 1:
            limit = f"{of_tenant} and must leave as many of the {self._most} places to others"
            self._reject(RejectedError(429, _TENANT_FULL, limit))
        self._held[tenant] = held

    def give_back(self, tenant: str, num: int) -> None:
        """Hold so many places less."""
        self._held[tenant] -= num
        if not self._held[tenant]:
            del self._held[tenant]

    def _reject(self, error: RejectedError) -> None:
        self.num_rejected[error.code] += 1
        raise error


class Places:
    """Those of one request."""

    def __init__(self, admission: Admission, tenant: str, entered_at: float) -> None:
        self._admission = admission
        self._tenant = tenant
        self.entered_at = entered_at
        """When the request came, in seconds."""
        self.num_held = 0

    def hold(self, num: int, field: str = "n") -> None:
        """Have `num` places at least, for as many sequences.

        Raises `RejectedError` where no place is free, and `InvalidRequestError` naming `field`
        where there can never be.
        """
        most = self._admission.most_of_one
        if num <= self.num_held:
            return
        if num > most:
            limit = f"at most {most} at a time, all prompts and their choices together"
            raise InvalidRequestError(field, f"{num} sequences", limit)
        self._admission.take(self._tenant, num - self.num_held)
        self.num_held = num
