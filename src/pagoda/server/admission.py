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
from pagoda.server.error_codes import SERVER_FULL, SHUTTING_DOWN, TENANT_FULL
from pagoda.server.errors import ShuttingDownError
from pagoda.server.shares import Holding, Shares

REJECTIONS = (SHUTTING_DOWN, TENANT_FULL, SERVER_FULL)
"""Codes of those who are not let in."""


class Admission:
    """Counts the requests that were taken and are not answered, and the places they hold.

    For one event loop.
    """

    def __init__(
        self, most: int, most_per_tenant: int | None = None, *, is_shared: bool = False
    ) -> None:
        """`most` places in all, for sequences that run and that wait; and of one tenant.

        Where the server `is_shared` by several tenants, a tenant without a bound of its own has a
        share of them (see `Shares`).
        """
        self.num_rejected: Counter[str] = Counter(dict.fromkeys(REJECTIONS, 0))
        """By the code that they were told."""
        self._places = Shares(
            most,
            "sequences running or waiting",
            is_shared=is_shared,
            most_per_tenant=most_per_tenant,
            num_rejected=self.num_rejected,
        )
        self._num_admitted = 0
        self._is_closed = False
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @property
    def num_admitted(self) -> int:
        """Requests."""
        return self._num_admitted

    @property
    def most_of_one(self) -> int:
        """Places that a request can have where nobody else is in."""
        return self._places.most_of_one

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
            error = ShuttingDownError()
            self.num_rejected[error.code] += 1
            raise error

    @contextmanager
    def entered(self, tenant: str, came_at: float | None = None) -> Iterator[Places]:
        """Be in for as long as the block runs. Raises `RejectedError` where no place is free.

        `came_at` is when the request came, in seconds of the event loop's clock; now without it.
        """
        self.require_open()
        came_at = asyncio.get_running_loop().time() if came_at is None else came_at
        with self._places.holding(tenant) as holding:
            places = Places(holding, self.most_of_one, came_at)
            places.hold(1)
            self._num_admitted += 1
            self._is_empty.clear()
            try:
                yield places
            finally:
                self._num_admitted -= 1
                if not self._num_admitted:
                    self._is_empty.set()


class Places:
    """Those of one request."""

    def __init__(self, holding: Holding, most: int, entered_at: float) -> None:
        """`most` of them can ever be held."""
        self._holding = holding
        self._most = most
        self.entered_at = entered_at
        """When the request came, in seconds."""

    @property
    def num_held(self) -> int:
        return self._holding.num

    def hold(self, num: int, field: str = "n") -> None:
        """Have `num` places at least, for as many sequences.

        Raises `RejectedError` where no place is free, and `InvalidRequestError` naming `field`
        where there can never be.
        """
        if num > self._most:
            limit = f"at most {self._most} at a time, all prompts and their choices together"
            raise InvalidRequestError(field, f"{num} sequences", limit)
        self._holding.take(max(0, num - self.num_held))
