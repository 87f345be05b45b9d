"""Bodies of requests that are still on their way, which hold no place yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from starlette.types import Message, Receive

from pagoda.server.errors import RejectedError
from pagoda.server.shares import FULL, Shares

MAX_PENDING = 1024
SILENCE_S = 1.0
"""Whoever has sent nothing for so long gives way to others."""


@dataclass(eq=False, slots=True)
class _Pending:
    """A body that is on its way."""

    tenant: str
    patience: asyncio.Timeout
    heard_at: float
    """When a part of it came last, on the event loop's clock."""
    num_bytes: int = 0


class PendingBodies:
    """Takes in the bodies of requests, so many and so many bytes of them at a time.

    Where several tenants share the server, each may have half of what the others leave free of
    either: clients who send nothing fill the share of their own key alone. Within a share, who has
    been silent for longest gives way to a new one. For one event loop.
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
        self._rejected = Counter() if num_rejected is None else num_rejected
        self._num = Shares(max_num, is_shared, "bodies on their way")
        self._bytes = Shares(max_bytes, is_shared, "bytes of bodies on their way")
        self._pending: set[_Pending] = set()

    async def received(self, tenant: str, receive: Receive) -> Receive:
        """Wait for a body; returns what gives it again, and then what comes after it.

        Raises `RejectedError` where there are too many or it has to give way, and what `receive`
        raises.
        """
        try:
            messages = await self._messages(tenant, receive)
        except RejectedError as error:
            if error.code == FULL:
                self._rejected[FULL] += 1
            raise
        messages.reverse()

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        return receive_again

    async def _messages(self, tenant: str, receive: Receive) -> list[Message]:
        messages: list[Message] = []
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(None) as patience:
                pending = _Pending(tenant, patience, clock())
                self._enter(pending)
                try:
                    while not messages or messages[-1].get("more_body", False):
                        message = await receive()
                        size = len(message.get("body", b""))
                        self._bytes.take(tenant, size)
                        pending.num_bytes += size
                        pending.heard_at = clock()
                        messages.append(message)
                finally:
                    self._leave(pending)
        except TimeoutError:
            if not patience.expired():
                raise
            limit = "others wait, and no part of the body came for a while"
            raise RejectedError(408, "request_too_slow", limit) from None
        return messages

    def _enter(self, pending: _Pending) -> None:
        if not self._num.has(pending.tenant, 1):
            own = (each for each in self._pending if each.tenant == pending.tenant)
            silent = min(own, key=lambda each: each.heard_at, default=pending)
            if pending.heard_at >= silent.heard_at + SILENCE_S:
                self._leave(silent)
                silent.patience.reschedule(pending.heard_at)
        self._num.take(pending.tenant, 1)
        self._pending.add(pending)

    def _leave(self, pending: _Pending) -> None:
        if pending in self._pending:
            self._pending.discard(pending)
            self._num.give_back(pending.tenant, 1)
            self._bytes.give_back(pending.tenant, pending.num_bytes)
