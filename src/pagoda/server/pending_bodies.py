"""Bodies of requests that are still on their way, which hold no place yet."""

from __future__ import annotations

from collections import Counter

from starlette.types import Message, Receive

from pagoda.server.errors import RejectedError

MAX_PENDING = 1024
_FULL = "server_overloaded"


class PendingBodies:
    """Takes in the bodies of requests, so many and so many bytes of them at a time.

    Where several tenants share the server, each may have half of what the others leave free of
    either: clients who send nothing fill the share of their own key alone. For one event loop.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        max_num: int = MAX_PENDING,
        is_shared: bool,
        num_rejected: Counter[str] | None = None,
    ) -> None:
        """Who is not taken is counted in `num_rejected`, by the code that they are told."""
        rejected = Counter() if num_rejected is None else num_rejected
        self._num = _Shares(max_num, is_shared, "bodies on their way", rejected)
        self._bytes = _Shares(max_bytes, is_shared, "bytes of bodies on their way", rejected)

    async def received(self, tenant: str, receive: Receive) -> Receive:
        """Wait for a body; returns what gives it again, and then what comes after it.

        Raises `RejectedError` where there are too many, and what `receive` raises.
        """
        messages: list[Message] = []
        num_bytes = 0
        self._num.take(tenant, 1)
        try:
            while not messages or messages[-1].get("more_body", False):
                message = await receive()
                size = len(message.get("body", b""))
                self._bytes.take(tenant, size)
                num_bytes += size
                messages.append(message)
        finally:
            self._num.give_back(tenant, 1)
            self._bytes.give_back(tenant, num_bytes)
        messages.reverse()

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        return receive_again


class _Shares:
    """So much of something, of which each tenant holds a share."""

    def __init__(self, most: int, is_shared: bool, what: str, rejected: Counter[str]) -> None:
        self._most = most
        self._is_shared = is_shared
        self._what = what
        self._rejected = rejected
        self._held: Counter[str] = Counter()

    def take(self, tenant: str, num: int) -> None:
        """Raises `RejectedError` where there is not so much left for this tenant."""
        held, num_free = self._held[tenant] + num, self._most - self._held.total() - num
        if num_free < 0 or (self._is_shared and held > num_free + 1):
            limit = f"the server takes {self._most:,} {self._what}, of all clients together"
            self._rejected[_FULL] += 1
            raise RejectedError(503, _FULL, limit)
        self._held[tenant] = held

    def give_back(self, tenant: str, num: int) -> None:
        self._held[tenant] -= num
        if not self._held[tenant]:
            del self._held[tenant]
